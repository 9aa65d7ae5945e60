"""Workers' phases against real rows: the reconciler's step, its guards and its notifications."""

import math
import uuid
from typing import Any

import pytest

from controller.domain.effects import StaleError
from controller.domain.workers import WorkerSettings
from controller.reconcilers.workers import ALL, WorkersReconciler
from controller.runtime.lease import TermLost
from controller.runtime.outcome import Done, Requeue
from controller.store.core.database import Database
from controller.store.workers import phases as worker_phases
from controller.store.workers import sessions
from support.database.ledger import add_deployment, add_host, add_instance, claim, rows
from support.leading.served_hub import eventually


async def reconciler(db: Database, *, healthy_s: float = math.inf, term: int | None = 1) -> WorkersReconciler:
    await execute(db, "update lease set term = 1, acquired_at = now() - interval '1 day'")
    return WorkersReconciler(db, term, healthy_for_s=lambda: healthy_s)


async def execute(db: Database, query: str, *args: Any) -> None:
    async with db.transaction() as c:
        await c.execute(query, *args)


async def heard(db: Database, name: str, age_s: float, *, connected: bool = True, clean: bool = False) -> None:
    """The worker's newest session was last heard so long ago."""
    await execute(
        db,
        """insert into worker_liveness (worker_id, session, connected, clean, last_seen)
           select id, session, $2, $3, clock_timestamp() - $4 * interval '1 second' from workers where name = $1
               on conflict (worker_id) do update
              set connected = excluded.connected, clean = excluded.clean, last_seen = excluded.last_seen""",
        name,
        connected,
        clean,
        age_s,
    )


async def phases(db: Database) -> dict[str, tuple[str, str]]:
    return {r["name"]: (r["phase"], r["reason"]) for r in await rows(db, "select name, phase, reason from workers")}


async def test_a_worker_goes_through_all_phases(migrated: Database) -> None:
    step = (await reconciler(migrated)).step
    await add_host(migrated, "w", phase="joining")
    await heard(migrated, "w", 1)
    outcome = (await step([ALL]))[ALL]
    assert await phases(migrated) == {"w": ("ready", "")}
    assert isinstance(outcome, Requeue)
    assert 13 < outcome.after_s <= 14
    await heard(migrated, "w", 16)
    await step([ALL])
    assert await phases(migrated) == {"w": ("unreachable", "silent")}
    await heard(migrated, "w", 61, connected=False)
    assert (await step([ALL]))[ALL] == Done()
    assert await phases(migrated) == {"w": ("lost", "disconnected")}
    since = await rows(migrated, "select phase_since from workers")
    await step([ALL])
    assert await rows(migrated, "select phase_since from workers") == since, "repeating changes nothing"
    await heard(migrated, "w", 1)
    await step([ALL])
    assert await phases(migrated) == {"w": ("ready", "")}
    reported = [r["reason"] for r in await rows(migrated, "select reason from events order by id")]
    assert reported == ["worker_ready", "worker_unreachable", "worker_lost", "worker_ready"]


async def test_a_workers_change_notifies_it_and_the_deployments_with_claims_on_it(migrated: Database) -> None:
    step = (await reconciler(migrated)).step
    host = await add_host(migrated, "w")
    uid = await add_deployment(migrated, "d")
    await add_deployment(migrated, "elsewhere")
    await add_instance(migrated, uid, "i", phase="running", epoch=1)
    await claim(migrated, host.gpus[0], "i", 1024)
    await heard(migrated, "w", 16)
    heard_hints: list[str] = []
    listener = await migrated.listen_connection()
    await listener.add_listener("gpuward", lambda *args: heard_hints.append(args[-1]))
    await step([ALL])

    async def both() -> bool:
        return sorted(heard_hints) == [f"deployment {uid}", f"worker {host.id}"]

    await eventually(both, "both hints")
    await listener.close()


@pytest.mark.parametrize(
    ("specs", "fence_s"),
    [
        ([{"stop_on_disconnect_after": 60, "drain_time": 20}], 64),
        ([{"stop_on_disconnect_after": 60, "drain_time": 20}, {"stop_on_disconnect_after": 90, "drain_time": 1}], 75),
        ([{"stop_on_disconnect_after": 60}, {}], None),
        ([], 45 - 61),
    ],
    ids=["one that stops", "the longest counts", "one that runs on", "nothing claimed"],
)
async def test_the_fence_follows_the_instances_that_hold_claims(
    migrated: Database, specs: list[dict[str, Any]], fence_s: float | None
) -> None:
    step = (await reconciler(migrated)).step
    host = await add_host(migrated, "w", phase="unreachable")
    for n, spec in enumerate(specs):
        uid = await add_deployment(migrated, f"d{n}", **spec)
        await add_instance(migrated, uid, f"i{n}", phase="running", epoch=1)
        await claim(migrated, host.gpus[n], f"i{n}", 1024)
    await heard(migrated, "w", 61)
    await step([ALL])
    ((fence,),) = [tuple(r.values()) for r in await rows(migrated, "select fence_until - now() from workers")]
    assert await phases(migrated) == {"w": ("lost", "silent")}
    if fence_s is None:
        assert fence is None
    else:
        assert fence.total_seconds() == pytest.approx(fence_s, abs=3)
    await heard(migrated, "w", 1)
    await step([ALL])
    assert await rows(migrated, "select fence_until from workers") == [{"fence_until": None}]


async def test_many_silent_at_once_open_the_breaker_and_nothing_is_lost(migrated: Database) -> None:
    step = (await reconciler(migrated)).step
    for name in ("a", "b", "c", "d"):
        await add_host(migrated, name, gpus=0)
        await heard(migrated, name, 100 if name in "ab" else 1)
    for _ in range(3):
        await step([ALL])
    assert await phases(migrated) == {
        "a": ("unreachable", "breaker_open"),
        "b": ("unreachable", "breaker_open"),
        "c": ("ready", ""),
        "d": ("ready", ""),
    }
    await heard(migrated, "b", 1)
    await step([ALL])
    assert await phases(migrated) == {
        "a": ("lost", "silent"),
        "b": ("ready", ""),
        "c": ("ready", ""),
        "d": ("ready", ""),
    }
    reported = [r["reason"] for r in await rows(migrated, "select reason from events order by id")]
    assert [reason for reason in reported if "breaker" in reason] == ["breaker_opened", "breaker_closed"]


async def test_workers_deleted_as_dead_do_not_count(migrated: Database) -> None:
    step = (await reconciler(migrated)).step
    for name in ("a", "b", "c", "d", "e"):
        await add_host(migrated, name, gpus=0)
        await heard(migrated, name, 100 if name in "ab" else 1)
    await step([ALL])
    assert (await phases(migrated))["a"] == ("unreachable", "breaker_open")
    await execute(migrated, "update workers set deleted_at = now(), confirmed_dead = now() where name = 'a'")
    await step([ALL])
    assert (await phases(migrated))["b"] == ("lost", "silent")


async def test_our_own_outage_and_a_new_term_do_not_count_as_silence(migrated: Database) -> None:
    await add_host(migrated, "w")
    await heard(migrated, "w", 600)
    assert (await (await reconciler(migrated, healthy_s=3)).step([ALL]))[ALL] == Requeue(pytest.approx(12, abs=1))
    assert await phases(migrated) == {"w": ("ready", "")}
    step = (await reconciler(migrated)).step
    await execute(migrated, "update lease set acquired_at = now() - interval '3 seconds'")
    await step([ALL])
    assert await phases(migrated) == {"w": ("ready", "")}


async def test_only_the_leader_writes(migrated: Database) -> None:
    await add_host(migrated, "w", phase="joining")
    await heard(migrated, "w", 1)
    with pytest.raises(StaleError):
        await (await reconciler(migrated, term=7)).step([ALL])
    assert await phases(migrated) == {"w": ("joining", "")}


async def test_a_term_lost_between_reading_and_writing_writes_nothing(
    migrated: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await reconciler(migrated)
    await add_host(migrated, "w", phase="joining")
    await heard(migrated, "w", 1)
    read = worker_phases.read_workers

    async def read_then_lose(connection: Any) -> Any:
        snapshot = await read(connection)
        await execute(migrated, "update lease set term = 2")
        return snapshot

    monkeypatch.setattr(worker_phases, "read_workers", read_then_lose)
    with pytest.raises(TermLost):
        await made.step([ALL])
    assert await phases(migrated) == {"w": ("joining", "")}


async def test_a_hello_between_reading_and_writing_makes_the_decision_stale(
    migrated: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await reconciler(migrated)
    await add_host(migrated, "w", phase="unreachable")
    await heard(migrated, "w", 100)
    read = worker_phases.read_workers

    async def read_then_return(connection: Any) -> Any:
        snapshot = await read(connection)
        await execute(migrated, "update workers set session = session + 1")
        return snapshot

    monkeypatch.setattr(worker_phases, "read_workers", read_then_return)
    with pytest.raises(StaleError):
        await made.step([ALL])
    assert await phases(migrated) == {"w": ("unreachable", "")}
    assert await rows(migrated, "select 1 from events") == []


async def test_a_hello_delays_its_own_worker_only(migrated: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """While thousands come back, some say hello between any reading and writing: the others must become ready."""
    made = await reconciler(migrated)
    for name in ("w", "x", "y"):
        await add_host(migrated, name, phase="joining")
        await heard(migrated, name, 1)
    read = worker_phases.read_workers

    async def read_then_return(connection: Any) -> Any:
        snapshot = await read(connection)
        await execute(migrated, "update workers set session = session + 1 where name = 'x'")
        return snapshot

    with monkeypatch.context() as patched:
        patched.setattr(worker_phases, "read_workers", read_then_return)
        (outcome,) = (await made.step([ALL])).values()
    assert isinstance(outcome, Requeue), "the third one comes next, without a hint"
    assert outcome.after_s <= 1
    assert await phases(migrated) == {"w": ("ready", ""), "x": ("joining", ""), "y": ("ready", "")}
    assert len(await rows(migrated, "select 1 from events where reason = 'worker_ready'")) == 2


async def test_phases_are_judged_by_the_newest_session_only(migrated: Database) -> None:
    step = (await reconciler(migrated)).step
    await add_host(migrated, "w", phase="unreachable")
    await heard(migrated, "w", 1)
    await execute(migrated, "update workers set session = session + 1")
    await step([ALL])
    assert (await phases(migrated))["w"][0] == "unreachable", (
        "a message on an older connection does not count as a return"
    )


async def test_a_credential_is_found_by_its_hash_also_when_deleted(migrated: Database) -> None:
    host = await add_host(migrated, "w")
    hashed = uuid.UUID(host.id).bytes
    async with migrated.connection() as c:
        found = (await sessions.find_by_credentials(c, [hashed]))[hashed]
        assert found is not None
        assert (found.id, found.deleted) == (host.id, False)
        assert await sessions.find_by_credentials(c, [b"unknown"]) == {}
    await execute(migrated, "update workers set deleted_at = now()")
    async with migrated.connection() as c:
        found = (await sessions.find_by_credentials(c, [hashed]))[hashed]
        assert found is not None
        assert found.deleted


def test_the_limits_are_those_of_the_design() -> None:
    settings = WorkerSettings()
    assert (settings.unreachable_after_s, settings.lost_after_s) == (15, 60)
