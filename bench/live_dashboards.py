"""CPU of the controller with many open dashboards, compared with none: 1,000 workers with 8 GPUs each.

Each dashboard acts as the Cluster page: a WebSocket with the objects, the figures of GPUs and the events. The
figures of some GPUs change in each round, and some objects each second. The dashboards run in a process of their own.
The CPU is that of the API and of the gateway before it, in one process here, with the writes. The bench exits with 1
where the dashboards cost more than the aim.

    make bench-live        (or: PYTHONPATH=tests python bench/live_dashboards.py --dashboards 50 --seconds 30)
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections import Counter
from typing import Final

import aiohttp

from controller.live.change_fanout import ChangeFanout
from controller.runtime.clock import SystemClock
from controller.runtime.feed import ChangeFeed
from controller.store.core.database import Database
from support.database.ledger import add_host
from support.leading.served_api import served
from temporary_database import run_with_database

AIM: Final = 0.15  # of a core, for all dashboards together
WORKERS, GPUS = 1000, 8
SETTLE_S: Final = 8.0  # until all have their snapshots
_FIGURES: Final = """
    insert into device_readings (device, used_mib, utilization, read_at)
    select uuid, 1024, (random() * 100)::int, now() from devices where random() < $1
    on conflict (device) do update set utilization = excluded.utilization, read_at = excluded.read_at"""
_OBJECTS: Final = """
    update workers set cordoned = not cordoned where id in (select id from workers order by random() limit $1)
    returning id"""


async def dashboards(url: str, key: str, count: int) -> None:
    """Follows until SIGTERM; then prints the number of messages of each type."""
    came: Counter[str] = Counter()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asyncio.current_task().cancel)  # type: ignore[union-attr]
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:

        async def follow() -> None:
            async with session.ws_connect(f"{url}/api/v1/live", compress=15, max_msg_size=0) as socket:
                for number, topic in enumerate(("objects", "gpus", "events")):
                    await socket.send_json({"op": "open", "id": number + 1, "topic": topic})
                async for message in socket:
                    came[message.data[:30].split('"')[5]] += 1

        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(follow() for _ in range(count)))
    print(f"    came to all: {dict(came)}")


async def writes(database: Database, changes: ChangeFanout, share: float, objects: int) -> None:
    for second in range(10**9):
        began = time.monotonic()
        async with database.transaction() as connection:
            if second % 2 == 0:
                await connection.execute(_FIGURES, share)
            changed = await connection.fetch(_OBJECTS, objects)
        for row in changed:
            changes.publish("worker", str(row["id"]))
        await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))


async def share_of_a_core(seconds: float) -> float:
    began, cpu = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - cpu) / (time.monotonic() - began)


async def measure(given: argparse.Namespace, database: Database) -> bool:
    for n in range(given.workers):
        await add_host(database, f"w{n:04}", gpus=GPUS, gib=80)
    async with served(database) as api:
        tasks = [
            asyncio.create_task(ChangeFeed(database.listen_connection, api.changes.publish, SystemClock()).run()),
            asyncio.create_task(writes(database, api.changes, given.share, given.objects)),
        ]
        client: asyncio.subprocess.Process | None = None
        try:
            shares: dict[int, float] = {}
            for count in (0, 1, given.dashboards):
                if count:
                    arguments = ("--client", api.url, api.keys["viewer"], "--dashboards", str(count))
                    client = await asyncio.create_subprocess_exec(sys.executable, __file__, *arguments)
                    await asyncio.sleep(SETTLE_S + count / 5)
                shares[count] = await share_of_a_core(given.seconds)
                print(f"{count:3} dashboards: {shares[count]:6.1%} of a core")
                if client is not None:
                    if client.returncode is not None:
                        raise SystemExit("the dashboards have ended early")
                    client.terminate()
                    await client.wait()
                    client = None
        finally:
            if client is not None:
                client.kill()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    cost = shares[given.dashboards] - shares[0]
    print(f"the dashboards cost {cost:.1%} of a core, aim {AIM:.0%}")
    return cost <= AIM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dashboards", type=int, default=50, help="at most 64: of one key")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--share", type=float, default=0.1, help="of the GPUs whose figures change in a round")
    parser.add_argument("--objects", type=int, default=5, help="workers that change each second")
    parser.add_argument("--client", nargs=2, metavar=("URL", "KEY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.client:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(dashboards(*given.client, given.dashboards))
        return

    sys.exit(0 if run_with_database(lambda database: measure(given, database)) else 1)


if __name__ == "__main__":
    main()
