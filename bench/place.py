"""Placement through the real reconcilers and store, durable, on simulated workers without agents.

Bursts alternate with a reference in the same database, so the results are ratios: to round trips (`SELECT 1`) and to
commits of one claim. Then follow single applies on the idle cluster, from the apply's commit to the claims' commit,
as a listener hears them. The bench asserts that the database is durable, and ends with the audit.

    make bench-place            (or: python bench/place.py --workers 1000 5000 --instances 4000 --blocks 8)
"""

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import uvloop
from prometheus_client import CollectorRegistry

from controller.daemon import tune_gc
from controller.engines.registry import engine_for
from controller.runtime.clock import SystemClock
from controller.runtime.feed import ChangeFeed
from controller.runtime.lease import Lease
from controller.runtime.metrics import Metrics
from controller.scheduling.estimate import input_hash
from controller.settings import ControllerSettings
from controller.store.core.database import Database
from controller.store.core.events import CHANNEL
from controller.store.core.ledger_audit import audit
from controller.store.core.migrate import migrate
from controller.store.deployments import apply as deployments
from controller.store.deployments import verbs
from controller.store.deployments.creations import Creations
from controller.store.embedded import EmbeddedPostgres
from controller.term import Leading, Term
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import MAX_WINDOW_S

GPUS_PER_WORKER = 8
GPU_MIB = 80 * 1024
LIMIT_S = 120.0
SINGLES = 200
CLIENTS = 32  # that apply at the same time
REFERENCE_S = 1.0
SPEC = {"engine": "simulated", "resources": {"gpus": 1}}


@dataclass(frozen=True)
class Block:
    """A burst and its reference, per second."""

    placed: float
    round_trips: float
    commits: float


@asynccontextmanager
async def leader(database: Database) -> AsyncIterator[None]:
    """A leading controller without its HTTP side."""
    clock = SystemClock()
    settings = ControllerSettings(
        unreachable_after_s=86_400, lost_after_s=86_400, audit_every_s=86_400, database_url=None
    )
    metrics = Metrics(CollectorRegistry())
    leading = Leading(lambda term: Term(database, term, clock, metrics, settings, lambda: 0.0))
    feed = ChangeFeed(database.listen_connection, leading.hint, clock)
    lease = Lease(database.listen_connection, "bench", clock)
    tasks = [asyncio.create_task(feed.run()), asyncio.create_task(lease.run(leading.lead))]
    try:
        async with asyncio.timeout(LIMIT_S):
            while lease.term is None or feed.connected_at is None:
                await asyncio.sleep(0.01)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def make_workers(database: Database, count: int) -> None:
    """Writes `count` ready workers with eight GPUs each, as the hub would."""
    ids = [uuid.uuid4() for _ in range(count)]
    async with database.transaction() as c:
        await c.execute("set local statement_timeout = 0")
        await c.execute(
            """insert into workers (id, name, credential_hash, proxy_secret, phase, os, arch, driver, simulated,
                                    gpus_known, session, reported_at)
               select id, 'w' || n, decode(replace(id::text, '-', ''), 'hex'), '', 'ready', 'linux', 'x86_64', '580.95',
                      true, true, 1, now()
                 from unnest($1::uuid[]) with ordinality x (id, n)""",
            ids,
        )
        await c.execute(
            """insert into devices (uuid, worker_id, kind, index, memory_mib, reported_mib, cpu_milli)
               select 'host-' || id, id, 'host', 0, 1048576, 1048576, 128000 from unnest($1::uuid[]) x (id)""",
            ids,
        )
        await c.execute(
            """insert into devices (uuid, worker_id, kind, index, model, compute_capability, memory_mib, reported_mib)
               select 'GPU-' || id || '-' || n, id, 'gpu', n, 'NVIDIA H100 80GB HBM3', '9.0', $2, $2
                 from unnest($1::uuid[]) x (id), generate_series(0, $3 - 1) n""",
            ids,
            GPU_MIB,
            GPUS_PER_WORKER,
        )
    async with database.connection() as c:
        await c.execute("vacuum analyze")


async def assert_durable(database: Database) -> None:
    """Asserts that fsync and synchronous_commit are on, so that counted commits are on disk."""
    async with database.connection() as c:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            value = await c.fetchval(f"show {name}")
            assert value == "on", f"{name} is {value}"
            print(f"{name} = {value}")


async def claimed(database: Database) -> int:
    async with database.connection() as c:
        return int(await c.fetchval("select count(distinct instance_id) from claims where instance_id like 'b%'"))


@asynccontextmanager
async def hears_commands(database: Database) -> AsyncIterator[asyncio.Event]:
    """An event that is set whenever start commands have been committed, in the transaction of their claims."""
    committed = asyncio.Event()

    def heard(_c: Any, _pid: int, _channel: str, payload: str) -> None:
        if payload.startswith("command "):
            committed.set()

    connection = await database.listen_connection()
    try:
        await connection.add_listener(CHANNEL, heard)
        yield committed
    finally:
        await connection.close()


async def burst(database: Database, name: str, instances: int, each: int) -> float:
    """Applies `instances / each` deployments of `each` replicas at once; returns placements per second, to the last."""
    before = await claimed(database)
    spec = DeploymentSpec.model_validate({**SPEC, "replicas": each})
    hash_ = input_hash(spec, engine_for(spec))
    gate, creations = asyncio.Semaphore(CLIENTS), Creations(database)

    async def apply(n: int) -> None:
        async with gate:
            await creations.apply(
                f"{name}-{n}", spec, input_hash=hash_, if_match=None, longest_window_s=MAX_WINDOW_S,
            )  # fmt: skip

    async with asyncio.timeout(LIMIT_S), hears_commands(database) as committed:
        began = time.perf_counter()
        await asyncio.gather(*(apply(n) for n in range(instances // each)))
        while await claimed(database) < before + instances:  # counted after each commit only, since counting costs CPU
            await committed.wait()
            committed.clear()
        return instances / (time.perf_counter() - began)


async def reference(database: Database) -> tuple[float, float]:
    """Round trips per second, and commits of one guarded claim each per second, one after another."""
    async with database.connection() as c:
        began, trips = time.perf_counter(), 0
        while time.perf_counter() - began < REFERENCE_S:
            await c.fetchval("select 1")
            trips += 1
        trip_rate = trips / (time.perf_counter() - began)
        host = await c.fetchval("select uuid from devices where kind = 'host' limit 1")
        instance = await c.fetchval("select id from instances limit 1")
        began, commits = time.perf_counter(), 0
        while time.perf_counter() - began < REFERENCE_S:
            commits += 1
            await c.execute(
                "insert into claims (device, instance_id, epoch, memory_mib) values ($1, $2, $3, 0)",
                host,
                instance,
                1_000_000 + commits,
            )
        commit_rate = commits / (time.perf_counter() - began)
        await c.execute("delete from claims where epoch > 1000000")
    return trip_rate, commit_rate


async def singles(database: Database) -> list[float]:
    """Seconds from an apply's commit to its claims' commit, one at a time on the idle cluster."""
    spec = DeploymentSpec.model_validate(SPEC)
    hash_ = input_hash(spec, engine_for(spec))
    took: list[float] = []
    async with hears_commands(database) as committed:
        for n in range(SINGLES):
            committed.clear()
            await deployments.apply(database, f"single-{n}", spec, input_hash=hash_)
            began = time.perf_counter()
            async with asyncio.timeout(LIMIT_S):
                await committed.wait()
            took.append(time.perf_counter() - began)
            await asyncio.sleep(0.02)
    return took


def report(title: str, blocks: list[Block]) -> None:
    placed = statistics.median(b.placed for b in blocks)
    to_commits = statistics.median(b.placed / b.commits for b in blocks)
    to_trips = statistics.median(b.placed / b.round_trips for b in blocks)
    print(
        f"{title}: {placed:,.0f} durable placements/s"
        f" (min {min(b.placed for b in blocks):,.0f}, max {max(b.placed for b in blocks):,.0f}),"
        f" {to_commits:.2f} x one-claim commits ({statistics.median(b.commits for b in blocks):,.0f}/s),"
        f" {to_trips:.2f} x SELECT 1 round trips ({statistics.median(b.round_trips for b in blocks):,.0f}/s)"
    )


async def run(options: argparse.Namespace, workers: int, folder: Path) -> None:
    async with EmbeddedPostgres(folder) as server:
        database = await Database.open(server.dsn)
        await migrate(database)
        await assert_durable(database)
        await make_workers(database, workers)
        print(f"{workers:,} workers x {GPUS_PER_WORKER} GPUs, {options.instances:,} instances of one GPU")
        async with leader(database):
            tune_gc()  # as the daemon does once it serves
            await burst(database, "bwarm", 8, 8)
            for each in options.replicas:
                size = options.instances // options.blocks
                size -= size % min(each, size)
                blocks = []
                for n in range(options.blocks):
                    rate = await burst(database, f"b{each}-{n}", size, min(each, size))
                    blocks.append(Block(rate, *(await reference(database))))
                report(f"bursts of {size} as deployments of {min(each, size)}", blocks)
                await clear(database)
            took = sorted(await singles(database))
            print(
                f"one at a time, apply's commit to claims' commit: p50 {took[len(took) // 2] * 1000:.1f} ms,"
                f" p99 {took[int(len(took) * 0.99) - 1] * 1000:.1f} ms, {len(took)} applies"
            )
        async with database.snapshot() as c:
            result = await audit(c)
        print(f"audit: {len(result.checked)} invariants, {len(result.violations)} violations")
        assert result.ok, result.violations
        await database.close()


async def clear(database: Database) -> None:
    """Deletes everything between rounds; no command was ever sent, so all goes at once."""
    async with database.connection() as c:
        names = [row["name"] for row in await c.fetch("select name from deployments where deleted_at is null")]
        for name in names:
            await verbs.delete(database, name)
        async with asyncio.timeout(LIMIT_S):
            while await c.fetchval("select exists (select 1 from instances)"):
                await asyncio.sleep(0.05)
        await c.execute("vacuum analyze")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1000, 5000], help="sizes of the fleet")
    parser.add_argument("--instances", type=int, default=4000)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--replicas", type=int, nargs="+", default=[4000, 20, 1], help="replicas per deployment")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    for workers in options.workers:
        with tempfile.TemporaryDirectory(prefix="gpuward-bench-") as folder:
            Path(folder).chmod(0o711)
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(run(options, workers, Path(folder)))


if __name__ == "__main__":
    main()
