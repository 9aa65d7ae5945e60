"""Obsolete analyses are cancelled at once, however busy the reconcilers are."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from prometheus_client import CollectorRegistry

from controller.reconcilers.cancelling import CancellingReconciler
from controller.runtime.clock import SystemClock
from controller.runtime.feed import ChangeFeed
from controller.runtime.metrics import Metrics
from controller.settings import ControllerSettings
from controller.store.core.database import Database
from controller.store.deployments import verbs
from controller.term import Leading, Term
from schemas.manifest.deployment import DeploymentSpec
from support.builders.apply import apply_spec
from support.leading.leader_term import LeaderTerm

LIMIT_S = 20.0
POLL_S = 0.005
STEPS_HANG_S = 8.0  # the database's lock_timeout
SLOW = {"analysis_seconds": 60, "memory": "10GiB"}


def spec(**fields: object) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"engine": "simulated", "args": SLOW, **fields})


async def until(seen: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + limit_s
    while not seen():
        assert loop.time() < give_up
        await asyncio.sleep(POLL_S)


async def begun(db: Database, leader_term: LeaderTerm) -> str:
    """The uid of a deployment with a running analysis."""
    uid = (await apply_spec(db, "d", spec())).view.uid
    await leader_term.instances.step([uid])
    assert leader_term.analyses.running(uid)
    return uid


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        (None, False),
        ({"args": {**SLOW, "memory": "11GiB"}}, False),
        ({"env": {"A": "1"}}, True),  # a new revision of the same input: its analysis goes on
        ({"replicas": 3}, True),
    ],
)
async def test_cancels_the_analysis_of_a_deleted_or_changed_deployment(
    db: Database, leader_term: LeaderTerm, change: dict[str, object] | None, needed: bool
) -> None:
    uid = await begun(db, leader_term)
    if change is None:
        await verbs.delete(db, "d")
    else:
        await apply_spec(db, "d", spec(**change))
    cancelling = CancellingReconciler(db, leader_term.analyses)
    assert list(await cancelling.list_keys()) == [uid]
    await cancelling.step([uid])
    assert leader_term.analyses.running(uid) is needed


async def test_cancels_the_analysis_of_a_missing_deployment(db: Database, leader_term: LeaderTerm) -> None:
    uid = await begun(db, leader_term)
    await verbs.delete(db, "d")
    other = await LeaderTerm.begin(db)
    await other.settle()
    await CancellingReconciler(db, leader_term.analyses).step([uid])
    assert not leader_term.analyses.running(uid)
    await other.aclose()


@asynccontextmanager
async def leading(db: Database, metrics: Metrics) -> AsyncIterator[None]:
    """All loops of one term, woken by the change feed."""
    async with db.transaction() as c:
        term = await c.fetchval("update lease set term = term + 1, holder = 'test' returning term")
    leader = Leading(lambda number: Term(db, number, SystemClock(), metrics, ControllerSettings(), lambda: 0.0))
    feed = ChangeFeed(db.listen_connection, leader.hint, SystemClock())
    tasks = [asyncio.create_task(feed.run()), asyncio.create_task(leader.lead(term))]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_cancel_does_not_wait_for_a_step(db: Database) -> None:
    """All workers of the instances' loop hang in a transaction; the deleted one's computation ends all the same."""
    registry = CollectorRegistry()

    def in_flight() -> float | None:
        return registry.get_sample_value("gpuward_computations_in_flight")

    async with leading(db, Metrics(registry)):
        await apply_spec(db, "slow", spec())
        await until(lambda: in_flight() == 1)
        async with db.connection() as blocker, blocker.transaction():
            # A takeover's lock: every step that writes waits for it.
            await blocker.execute("select 1 from lease where id = 1 for update")
            for n in range(4):
                await apply_spec(db, f"other-{n}", spec(args={}))
                await asyncio.sleep(0.1)
            waiting = "select count(*) from pg_locks where not granted"
            async with db.connection() as looker:
                assert await looker.fetchval(waiting) >= 2
                await verbs.delete(db, "slow")
                await until(lambda: in_flight() == 0, STEPS_HANG_S / 2)
                assert await looker.fetchval(waiting) >= 2
    (cancelled,) = [
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "gpuward_computation_cancel_seconds_count"
    ]
    assert cancelled == 1


async def test_a_deletion_ends_a_computation_without_a_read(db: Database) -> None:
    """No read of revisions returns meanwhile, so only the notification itself can have ended it."""
    registry = CollectorRegistry()

    def in_flight() -> float | None:
        return registry.get_sample_value("gpuward_computations_in_flight")

    async with leading(db, Metrics(registry)):
        await apply_spec(db, "slow", spec())
        await until(lambda: in_flight() == 1)
        async with db.connection() as blocker, blocker.transaction():
            await blocker.execute("lock table revisions in access exclusive mode")
            deleting = asyncio.create_task(verbs.delete(db, "slow"))
            await until(lambda: in_flight() == 0, STEPS_HANG_S / 2)
        await deleting


async def test_a_malformed_notification_of_a_deletion_ends_nothing(db: Database) -> None:
    registry = CollectorRegistry()
    async with leading(db, Metrics(registry)):
        uid = (await apply_spec(db, "slow", spec())).view.uid
        await until(lambda: registry.get_sample_value("gpuward_computations_in_flight") == 1)
        async with db.connection() as c:
            for payload in ("gone", "gone *", f"gone {uid}", f"gone {uid}@soon", f"gone {uid}@1e400", "gone @1.5"):
                await c.execute("select pg_notify('gpuward', $1)", payload)
        await asyncio.sleep(0.3)
        assert registry.get_sample_value("gpuward_computations_in_flight") == 1
