"""The idle report of 200 deployments over two weeks, and with a replayed policy, compared with a plain reading.

Half of the deployments never become idle by the replayed policy: all of their minutes must be read. The plain
reading is `select count(*), sum(max) from sample_minutes` over the same time. Everything is measured right after an
upgrade, when no hour is packed (`store/telemetry/minute_hours.py`), and then with all past hours packed; first with
claims that last, then with claims that are renewed daily. Each figure is the best of some tries, the ratio that of the
best. The bench exits with 1 where the report of packed hours takes longer than the aim.

    make bench-hours        (or: PYTHONPATH=tests python bench/idle_report.py --deployments 200 --days 14)
"""

import argparse
import json
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from controller.runtime.lease import check_term, read_term
from controller.store.core.database import Database
from controller.store.telemetry.minute_hours import pack_hours
from controller.store.telemetry.partitions import SampleRetention, make_partitions
from support.database.history import rolled_up
from support.database.ledger import add_deployment, add_host
from support.leading.served_api import served
from temporary_database import run_with_database

AIM_S: Final = 2.0
GPUS: Final = 8
_SPANS: Final = """
    insert into claim_spans (device, worker_id, instance_id, epoch, deployment_uid, deployment, memory_mib, device_mib,
                             exclusive, running_since, began_at, ended_at)
    select d.uuid, d.worker_id, 'i' || d.uuid, 1, p.uid, p.name, d.memory_mib, d.memory_mib, p.n % 8 < 4,
           now() - $1::interval, now() - $1::interval, now()
      from (select *, row_number() over (order by uuid) as n from devices where kind = 'gpu') d
      join (select *, row_number() over (order by name) as n from deployments) p on p.n = d.n"""
# Of four deployments one is idle, one works every third hour, one half of the time, one always.
_DAY: Final = """
    insert into sample_minutes (minute, device, instance_id, mean, max, samples, covered_s)
    select m, s.device, case when s.exclusive then '' else s.instance_id end,
           case when works then 60 else 1 end, case when works then 95 else 3 end, 6, 60
      from (select *, row_number() over (order by deployment) as n from claim_spans) s,
           generate_series(date_trunc('minute', now()) - make_interval(days => $1),
                           date_trunc('minute', now()) - make_interval(days => $1 - 1, secs => 60), interval '1 min') m,
           lateral (select case s.n % 4 when 0 then false when 1 then extract(hour from m)::int % 3 = 0
                                        when 2 then extract(minute from m)::int % 10 < 5 else true end as works) w
     order by m"""
# Each claim is renewed at another time of each day, in place.
_RENEW: Final = """
    insert into claim_spans (device, worker_id, instance_id, epoch, deployment_uid, deployment, memory_mib, device_mib,
                             exclusive, running_since, began_at, ended_at)
    select device, worker_id, instance_id, day, deployment_uid, deployment, memory_mib, device_mib, exclusive, begin,
           begin, least(begin + interval '1 day', now())
      from claim_spans, generate_series(1, $1 + 1) as day,
           lateral (select greatest(began_at, began_at + make_interval(days => day - 1) - id % 1440 * interval '1 min')
                           as begin) x
     where begin < now()"""
_PLAIN: Final = "select count(*), sum(max) from sample_minutes where minute >= now() - $1::interval"


async def seed(database: Database, deployments: int, days: int) -> None:
    """Deployments of one GPU each, which run all the time, and a row for each minute of each."""
    async with database.transaction() as c:
        await make_partitions(c, SampleRetention(samples_h=24.0 * (days + 1), history_days=days + 1))
    for n in range(-(-deployments // GPUS)):
        await add_host(database, f"w{n:03}", gpus=GPUS)
    for n in range(deployments):
        await add_deployment(database, f"d{n:03}")
    async with database.transaction() as c:
        await c.execute(_SPANS, timedelta(days=days))
    for day in range(days, 0, -1):
        async with database.transaction() as c:
            await c.execute("set local statement_timeout = 0")
            await c.execute(_DAY, day, timeout=120)
    async with database.connection() as c:
        await c.execute("vacuum analyze sample_minutes", timeout=120)
    await rolled_up(database)


async def best_s(tries: int, work: Callable[[], Awaitable[Any]]) -> float:
    took = []
    for _ in range(tries):
        began = time.monotonic()
        await work()
        took.append(time.monotonic() - began)
    return min(took)


async def measure(given: argparse.Namespace, database: Database) -> bool:
    await seed(database, given.deployments, given.days)

    async def plain() -> None:
        async with database.snapshot() as connection:
            await connection.fetch(_PLAIN, timedelta(days=given.days))

    async with served(database) as api:
        path = f"/api/v1/reports/idle?since={given.days}d"
        ways = {"report": path, "what if 30 % for 10 m": f"{path}&min_gpu_utilization=30&time_window=10m"}

        async def reports(when: str) -> dict[str, bytes]:
            plain_s = await best_s(given.tries, plain)
            print(f"{when}: plain reading {plain_s:.2f} s")
            answers = {}
            for name, query in ways.items():

                async def ask(name: str = name, query: str = query) -> None:
                    answers[name] = json.dumps(await api.get(query)).encode()

                took_s[name, when] = await best_s(given.tries, ask)
                ratio = took_s[name, when] / plain_s
                print(f"  {name:22} {took_s[name, when]:6.2f} s, {ratio:4.1f} times the plain reading, aim {AIM_S:g} s")
            return answers

        took_s: dict[tuple[str, str], float] = {}
        single = await reports("no hour packed")
        packing_s = await pack(database)
        print(f"all past hours packed in {packing_s:.1f} s")
        same = await reports("packed") == single
        print(f"byte for byte the same: {same}")
        async with database.transaction() as c:
            await c.execute(_RENEW, given.days)
            await c.execute(
                "delete from claim_spans where epoch = 1 and ended_at = (select max(ended_at) from claim_spans)"
            )
        await reports("packed, daily restarts")
    return same and all(took <= AIM_S for (_, when), took in took_s.items() if when != "no hour packed")


async def pack(database: Database) -> float:
    began = time.monotonic()
    done = False
    while not done:
        async with database.transaction() as c:
            await check_term(c, await read_term(c))
            done = await pack_hours(c)
    async with database.connection() as c:
        await c.execute("vacuum analyze minute_hours", timeout=120)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--tries", type=int, default=3)
    given = parser.parse_args()

    sys.exit(0 if run_with_database(lambda database: measure(given, database)) else 1)


if __name__ == "__main__":
    main()
