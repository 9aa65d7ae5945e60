"""Crashes within a reconcile step: whichever await fails, the state converges as if it had not."""

import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import asyncpg
import pytest

from controller.domain.effects import StaleError
from controller.leader import analyses as analysis
from controller.leader import housekeeping, placement_passes, start_checks
from controller.reconcilers import cancelling, instances, placement, workers
from controller.runtime import lease
from controller.store.core import events, guards, ledger_audit
from controller.store.core.database import Database
from controller.store.deployments import effects as instance_writes
from controller.store.deployments import observe as instance_reads
from controller.store.deployments import relocations, rollouts
from controller.store.placement import commit as placement_store
from controller.store.placement import pass_reads
from controller.store.telemetry import retention
from controller.store.workers import phases
from support.database.ledger import add_deployment, rows
from support.leading.awaits import Awaits
from support.leading.failpoints import FailingDatabase, Failpoints, Kind
from support.leading.handover import Handover
from support.leading.lifecycle import ACTS, ANALYSED, PREEMPTED, Act, Crew, World, differences

AWAITS = Awaits(
    (
        instances, placement, placement_passes, start_checks, workers, housekeeping, analysis, cancelling,
        instance_reads, instance_writes, relocations, rollouts,
        guards, placement_store, pass_reads,
        phases, events, ledger_audit, retention, lease,
    )
)  # fmt: skip
# No reconciler's step passes these.
ELSEWHERE = {
    "leader.analyses.Analyses.aclose": "ends child processes, after the last step",
    "leader.analyses.analyse_now": "the API's, for plans: it writes nothing",
    "leader.housekeeping._Rounds.run": "the loop around `round`: it sleeps and catches",
    "leader.housekeeping.History": "rolls up samples, of which this road has none",
    "leader.housekeeping.Sealing": "seals keys, of which this road has none",
    "reconcilers.instances.InstancesReconciler.list_keys[0] exit": "gives the connection back: nothing is sent",
    "reconcilers.cancelling.CancellingReconciler.step[0] exit": "as above",
    "deployments.relocations.check_none_in_progress": "the API's",
    "deployments.relocations.request_relocations": "the API's",
    "deployments.relocations.begin_relocations": "of planned relocations, of which this road has none",
    "deployments.rollouts._set_paused": "the API's",
    "deployments.rollouts.pause": "the API's",
    "deployments.rollouts.resume": "the API's",
    "deployments.rollouts.report_outcomes": "the gateways'",
    "reconcilers.instances.InstancesReconciler._apply[0]": "waits for the pass before it, and sends nothing",
    "reconcilers.placement.PlacementReconciler.step[0]": "as above",
    "reconcilers.placement.PlacementReconciler.step[2]": "decides, and sends nothing: each commit is a task of its own",
    "reconcilers.placement.PlacementReconciler._decide": "as above",
    "reconcilers.placement.PlacementReconciler._place": "as above",
    "leader.placement_passes.PlacementPasses.one_pass[0]": "as above",
    "leader.placement_passes.PlacementPasses.full_pass[0]": "as above",
    "leader.placement_passes.PlacementPasses.place_new": "as above",
    "core.events.write_late_events[0]": "appends what stands for events beyond their budgets: this road has none",
    "core.events._admit": "spends budgets of events that agents alone cause: this road has none",
    "core.events._spend": "as above",
    "leader.start_checks.check_specs": "the dry runs'",
    "leader.start_checks._read_secrets": "of instances that may preempt: those of these roads have none",
    "core.guards.expect_intents": "of policies and of the autoscaler",
    "core.ledger_audit.read_audit_result": "the API's",
    "runtime.lease.read_term": "the hub's",
    "runtime.lease.go_above": "the hub's",
    "runtime.lease.expire_lease": "the daemon's, at its start",
    "runtime.lease.Lease": "the campaign for the lease, which has tests of its own",
}
REACHED = tuple(n for n in AWAITS.names if not n.startswith(tuple(ELSEWHERE)))
KEEPING = (
    "leader.housekeeping.",
    "core.ledger_audit.",
    "core.events.write_late_events",
    "core.events._late_events",
    "telemetry.retention.",
)
HOUSE = tuple(n for n in REACHED if n.startswith(KEEPING))
# Awaits that only a preemption passes.
HOLDERS = ("placement.pass_reads.read_holders", "placement.commit.preempt_victims")
RECONCILER = "reconcilers.placement.PlacementReconciler"
PREEMPTING = tuple(
    n for n in REACHED if n.startswith((*HOLDERS, f"{RECONCILER}._read_holders"))
    or n in (f"{RECONCILER}._explain_batch[2]", f"{RECONCILER}._observe[5]") or ".check_starts[" in n
)  # fmt: skip
# Awaits that only a road with a running analysis passes.
ANALYSING = tuple(n for n in REACHED if n.startswith(("reconcilers.cancelling.", "deployments.observe.current_inputs")))
NAMES = tuple(n for n in REACHED if n not in HOUSE + PREEMPTING + ANALYSING)
STORM = 150
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
AROUND_ANALYSIS = (
    "reconcilers.instances.InstancesReconciler",
    "reconcilers.cancelling.",
    "deployments.effects._create",
)
# By itself each is struck in the nightly run; in the short one only the commit whose answer is lost.
ONE_BY_ONE = NAMES if NIGHTLY else ("reconcilers.instances.InstancesReconciler._apply[1] exit",)
# Around single acts the short run has a fault of each cause; the nightly run has every kind.
SOME_KINDS = tuple(Kind) if NIGHTLY else (Kind.REFUSED, Kind.LOST_AFTER, Kind.KILLED_AFTER)

_undisturbed: list[dict[str, str]] = []


@pytest.fixture
async def admin(db: Database) -> AsyncIterator["asyncpg.Pool[asyncpg.Record]"]:
    """Connections without injected faults."""
    async with asyncpg.create_pool(db.dsn, min_size=1, max_size=2) as pool:
        yield pool


async def run_lifecycle(handover: Handover, road: Sequence[Act] = ACTS) -> None:
    for act in road:
        await handover.run(act)
    await handover.crew.aclose()


def each_once(names: Iterable[str]) -> tuple[set[str], Callable[[tuple[str, ...]], bool]]:
    """Awaits without a fault so far, and the function that injects one where each is first passed."""
    left = set(names)

    def wants(here: tuple[str, ...]) -> bool:
        fresh = not left.isdisjoint(here)
        left.difference_update(here)
        return fresh

    return left, wants


async def undisturbed(db: Database, admin: "asyncpg.Pool[asyncpg.Record]") -> list[dict[str, str]]:
    """The pictures of the road without faults, and the proof that it passes every await."""
    if not _undisturbed:
        points = Failpoints(AWAITS)
        handover = await Handover.begin(await World.make(db), FailingDatabase(db, points, admin), points)
        await run_lifecycle(handover)
        assert handover.failures == handover.takeovers == 0
        assert [name for name in NAMES if name not in points.passed] == []
        _undisturbed.extend(handover.pictures)
    return _undisturbed


async def test_the_road_passes_every_await(db: Database, admin: "asyncpg.Pool[asyncpg.Record]") -> None:
    assert len(await undisturbed(db, admin)) == len(ACTS)
    assert len(NAMES) > 60
    assert [prefix for prefix in ELSEWHERE if not any(n.startswith(prefix) for n in AWAITS.names)] == []


@pytest.mark.parametrize("kind", list(Kind))
async def test_a_fault_at_every_await(db: Database, admin: "asyncpg.Pool[asyncpg.Record]", kind: Kind) -> None:
    """Each await fails once, where the road first passes it; the road continues after each."""
    left, wants = each_once(NAMES)
    expected = await undisturbed(db, admin)
    points = Failpoints(AWAITS, kind, wants)
    handover = await Handover.begin(await World.make(db), FailingDatabase(db, points, admin), points)
    await run_lifecycle(handover)
    assert not left
    assert (handover.takeovers if kind.deadly else handover.failures) >= points.strikes > 40
    assert differences(handover.pictures, expected) == []


async def test_a_storm_of_deadlocks_passes(db: Database, admin: "asyncpg.Pool[asyncpg.Record]") -> None:
    """Of five uses of the database four are chosen as a deadlock's victim, again and again."""
    expected = await undisturbed(db, admin)
    points = Failpoints(AWAITS)

    def wants(_: tuple[str, ...]) -> bool:
        uses.append(None)
        return len(uses) % 5 != 0 and points.strikes < STORM

    uses: list[None] = []
    points.wants = wants
    handover = await Handover.begin(await World.make(db), FailingDatabase(db, points, admin), points)
    await run_lifecycle(handover)
    assert points.strikes == STORM
    assert handover.failures > STORM / 2
    assert differences(handover.pictures, expected) == []


@pytest.mark.parametrize("name", ONE_BY_ONE)
@pytest.mark.parametrize("kind", list(Kind) if NIGHTLY else [Kind.LOST_AFTER, Kind.KILLED_AFTER])
async def test_a_single_fault(db: Database, admin: "asyncpg.Pool[asyncpg.Record]", kind: Kind, name: str) -> None:
    def wants(here: tuple[str, ...]) -> bool:
        return points.strikes == 0 and name in here

    expected = await undisturbed(db, admin)
    points = Failpoints(AWAITS, kind, wants)
    handover = await Handover.begin(await World.make(db), FailingDatabase(db, points, admin), points)
    await run_lifecycle(handover)
    assert points.strikes == 1
    assert differences(handover.pictures, expected) == []


@pytest.mark.parametrize("kind", SOME_KINDS)
async def test_a_fault_around_an_analysis(db: Database, admin: "asyncpg.Pool[asyncpg.Record]", kind: Kind) -> None:
    """A later write stores its result, or it runs anew; the child of a dead leader does not matter."""
    plain = await Handover.begin(await World.make(db), db, Failpoints(AWAITS))
    await run_lifecycle(plain, ANALYSED)
    _, wants = each_once(n for n in (*NAMES, *ANALYSING) if n.startswith(AROUND_ANALYSIS))
    points = Failpoints(AWAITS, kind, wants)
    handover = await Handover.begin(await World.make(db), FailingDatabase(db, points, admin), points)
    await run_lifecycle(handover, ANALYSED)
    assert points.strikes > 5
    assert "deployments.effects._create[0]" in points.passed
    assert points.passed.issuperset(ANALYSING)
    assert differences(handover.pictures, plain.pictures) == []


@pytest.mark.parametrize("kind", SOME_KINDS)
async def test_a_fault_during_a_preemption(db: Database, admin: "asyncpg.Pool[asyncpg.Record]", kind: Kind) -> None:
    """Exactly one victim stops, whatever fails meanwhile, and its successor gets a place."""
    plain = await Handover.begin(await World.make(db), db, Failpoints(AWAITS))
    await run_lifecycle(plain, PREEMPTED)
    left, wants = each_once(
        n for n in (*NAMES, *PREEMPTING) if n.startswith(("reconcilers.placement.", *HOLDERS, *PREEMPTING))
    )
    points = Failpoints(AWAITS, kind, wants)
    handover = await Handover.begin(await World.make(db), FailingDatabase(db, points, admin), points)
    await run_lifecycle(handover, PREEMPTED)
    assert not left.intersection(PREEMPTING)
    assert differences(handover.pictures, plain.pictures) == []


@pytest.mark.parametrize("kind", SOME_KINDS)
async def test_a_fault_in_the_housekeeping(db: Database, admin: "asyncpg.Pool[asyncpg.Record]", kind: Kind) -> None:
    """A violation is reported however often the write fails, and nothing else is written."""
    left, wants = each_once(HOUSE)
    points = Failpoints(AWAITS, kind, wants)
    world = await World.make(db)
    await forget_to_bury(db)
    handover = await Handover.begin(world, FailingDatabase(db, points, admin), points)
    world.tolerated = {"tombstones_go"}
    while not await handover.step(handover.crew.keep_house):
        continue
    assert not left
    reported = await rows(db, "select reason from events")
    assert {row["reason"] for row in reported} == {"invariant_violated"}
    assert len(reported) <= 1 + points.strikes
    await handover.crew.aclose()


async def test_the_housekeeping_of_a_former_leader_writes_nothing(db: Database) -> None:
    old = await Crew.begin(db)
    await forget_to_bury(db)
    await Crew.begin(db)
    with pytest.raises(StaleError):
        await old.keep_house()
    assert await rows(db, "select 1 from events") == []


async def forget_to_bury(db: Database) -> None:
    """A tombstone without any instance."""
    await add_deployment(db, "d")
    async with db.transaction() as connection:
        await connection.execute("update deployments set deleted_at = now() - interval '1 hour'")
