"""The cost of a scrape of /metrics: 1,000 workers with 8 GPUs each, all with details, and 2,000 deployments.

The bench prints the time and the bytes of a scrape, and the lag of the event loop. It exits with 1 where a
scrape takes longer than the aim, or where ten at once cost more than two.

    make bench-scrape        (or: PYTHONPATH=tests python bench/scrape.py --workers 100)
"""

import argparse
import asyncio
import sys
import time
from statistics import median
from typing import Final

from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_host, add_instance
from support.leading.served_api import ServedApi, served
from temporary_database import run_with_database

AIM_S: Final = 5.0  # scrapers give up after ten
GPUS: Final = 8
_DETAILS: Final = """
    insert into device_details (device, details, read_at)
    select uuid, '{"power_w": 300, "temperature_c": 60, "sm_clock_mhz": 1400, "memory_clock_mhz": 2600, "nvlinks": 18,
                   "energy_j": 1000, "ecc_corrected": 0, "ecc_uncorrected": 0}', now() + interval '1 hour'
      from devices where kind = 'gpu'"""
_READINGS: Final = """
    insert into device_readings (device, used_mib, utilization, read_at)
    select uuid, 1024, 50, now() + interval '1 hour' from devices where kind = 'gpu'"""
_CLAIMS: Final = """
    insert into claims (device, instance_id, epoch, memory_mib)
    select d.uuid, i.id, 1, 1024
      from (select uuid, row_number() over (order by uuid) as n from devices where kind = 'gpu') d
      join (select id, row_number() over (order by id) as n from instances) i on i.n = d.n"""


async def fill(database: Database, workers: int, deployments: int) -> None:
    for number in range(workers):
        await add_host(database, f"w{number}", gpus=GPUS)
    for number in range(deployments):
        uid = await add_deployment(database, f"d{number}")
        await add_instance(database, uid, f"d{number}-1", phase="running", epoch=1)
    async with database.transaction() as connection:
        for query in (_DETAILS, _READINGS, _CLAIMS):
            await connection.execute(query)
    async with database.connection() as connection:
        await connection.execute("analyze")


async def scrape(api: ServedApi) -> int:
    async with api.session.get(api.url + "/metrics", headers=api.header("viewer")) as answer:
        assert answer.status == 200, await answer.text()
        return len(await answer.read())


async def worst_lag(until: asyncio.Event) -> float:
    worst = 0.0
    while not until.is_set():
        began = time.monotonic()
        await asyncio.sleep(0.005)
        worst = max(worst, time.monotonic() - began - 0.005)
    return worst


async def measure(api: ServedApi) -> bool:
    await scrape(api)
    done, times, size = asyncio.Event(), [], 0
    lag = asyncio.create_task(worst_lag(done))
    for _ in range(5):
        began = time.monotonic()
        size = await scrape(api)
        times.append(time.monotonic() - began)
    began = time.monotonic()
    await asyncio.gather(*(scrape(api) for _ in range(10)))
    at_once = time.monotonic() - began
    done.set()
    one = median(times)
    print(f"a scrape: {one:.2f} s, {size / 1e6:.1f} MB; ten at once: {at_once:.2f} s; worst lag: {await lag:.3f} s")
    return one <= AIM_S and at_once <= 3 * one + 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--deployments", type=int, default=2000)
    given = parser.parse_args()

    async def run(database: Database) -> bool:
        await fill(database, given.workers, given.deployments)
        async with served(database) as api:
            return await measure(api)

    sys.exit(0 if run_with_database(run) else 1)


if __name__ == "__main__":
    main()
