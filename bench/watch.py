"""CPU of watches per wave of changes: one reader for all watchers, compared with a reader for each.

Both ways see the same waves over the same rows, in turn. A wave changes some deployments, and each watcher gets its
server-sent events. The CPU is this process's: reading, encoding and handing out, without sockets, which cost the same
either way. The bench exits with 1 where the shared reader's CPU for each watcher is above the aim.

    make bench-watch        (or: PYTHONPATH=tests python bench/watch.py --watchers 32 --deployments 200 --each 20)
"""

import argparse
import asyncio
import hashlib
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from controller.live import object_feed
from controller.live.change_fanout import ChangeFanout
from controller.live.object_feed import ObjectFeed, Wanted
from controller.store.core.database import Database
from controller.store.views.deployments import deployments_by_uid
from controller.store.views.instances import instances_of
from schemas.api.view import to_plain
from temporary_database import run_with_database

AIM_MS: Final = 1.0  # for each watcher and wave
WANTED: Final = Wanted()
KEY: Final = "k"
_DEPLOYMENTS: Final = """
    with d as (insert into deployments (uid, name, generation, revision, spec)
               select gen_random_uuid(), 'd' || n, 1, 1, '{"engine": "simulated"}' from generate_series(1, $1) n
            returning uid, name),
         r as (insert into revisions (deployment_uid, generation, spec, input_hash)
               select uid, 1, '{"engine": "simulated"}', '' from d)
    insert into instances (id, deployment_uid, revision, phase, epoch)
    select name || '-' || n, uid, 1, 'pending', 0 from d, generate_series(1, $2) n"""
Wave = Callable[[int], Awaitable[frozenset[str]]]


class OwnReader:
    """A watcher that reads and encodes for itself."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sent: dict[tuple[str, str], bytes] = {}

    async def read(self, uids: frozenset[str] | None) -> int:
        async with self._database.snapshot() as connection:
            views: list[Any] = [*await deployments_by_uid(connection, uids), *await instances_of(connection, uids)]
        size = 0
        for view in views:
            body = to_plain(view)
            digest = hashlib.blake2b(orjson.dumps(body), digest_size=16).digest()
            if self._sent.get((view.kind, view.uid)) != digest:
                self._sent[view.kind, view.uid] = digest
                size += len(orjson.dumps({"type": "changed", "object": body}))
        return size


async def each_for_itself(database: Database, watchers: int, waves: int, wave: Wave) -> list[float]:
    readers = [OwnReader(database) for _ in range(watchers)]
    for reader in readers:
        await reader.read(None)
    took = []
    for number in range(waves):
        uids = await wave(number)
        began = time.process_time()
        sizes = [await reader.read(uids) for reader in readers]
        took.append(time.process_time() - began)
        if min(sizes) == 0:
            raise SystemExit("a wave has changed nothing")
    return took


async def shared(database: Database, watchers: int, waves: int, wave: Wave) -> list[float]:
    changes = ChangeFanout()
    feed = ObjectFeed(database, changes)
    frames: asyncio.Queue[int] = asyncio.Queue()

    async def watch() -> None:
        async with feed.watch(KEY, WANTED) as stream:
            stream.snapshot()
            frames.put_nowait(0)
            while True:
                for batch in await stream.take():
                    frames.put_nowait(len(batch.frames(WANTED)))

    tasks = [asyncio.create_task(watch()) for _ in range(watchers)]
    took = []
    try:
        for _ in tasks:
            await frames.get()
        for number in range(waves):
            uids = await wave(number)
            began = time.process_time()
            for uid in uids:
                changes.publish("status", uid)
            async with asyncio.timeout(30):
                for _ in tasks:
                    await frames.get()
            took.append(time.process_time() - began)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await feed.stop()
    return took


async def measure(given: argparse.Namespace, database: Database) -> bool:
    async with database.transaction() as connection:
        await connection.execute(_DEPLOYMENTS, given.deployments, given.each)
        rows = await connection.fetch("select uid from deployments order by uid limit $1", given.changed)
    changed: list[uuid.UUID] = [row["uid"] for row in rows]

    async def wave(number: int) -> frozenset[str]:
        async with database.transaction() as connection:
            message = f"{number} {time.monotonic_ns()}"
            await connection.execute("update deployments set message = $2 where uid = any($1)", changed, message)
            await connection.execute(
                "update instances set message = $2 where deployment_uid = any($1)", changed, message
            )
        return frozenset(map(str, changed))

    ways = {"each for itself": each_for_itself, "one for all": shared}
    medians = {}
    for name, way in ways.items():
        took = await way(database, given.watchers, given.waves, wave)
        medians[name] = statistics.median(took)
        each = medians[name] / given.watchers * 1000
        print(f"{name:>16}: {medians[name] * 1000:8.1f} ms of CPU a wave, {each:7.3f} ms for each watcher and wave")
    print(f"ratio {medians['each for itself'] / medians['one for all']:.1f}, aim {AIM_MS} ms for each watcher and wave")
    return medians["one for all"] / given.watchers * 1000 <= AIM_MS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, default=32, help="at most 64")
    parser.add_argument("--waves", type=int, default=9)
    parser.add_argument("--deployments", type=int, default=200)
    parser.add_argument("--each", type=int, default=20, help="instances of each deployment")
    parser.add_argument("--changed", type=int, default=5, help="deployments that a wave changes")
    given = parser.parse_args()
    object_feed.SWEEP_S = 3600.0

    sys.exit(0 if run_with_database(lambda database: measure(given, database)) else 1)


if __name__ == "__main__":
    main()
