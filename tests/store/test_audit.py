"""Each invariant of the audit passes on a consistent ledger, and reports each violation."""

from typing import Any

import pytest

from controller.domain.phases import HOLDS_CLAIMS, InstancePhase
from controller.store.core.database import Database
from controller.store.core.ledger_audit import INVARIANTS, audit
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim, report

_GUARDS = (
    "alter table claims disable trigger user",
    "alter table revisions drop constraint revisions_deployment_uid_fkey",
    "alter table instances drop constraint instances_deployment_uid_revision_fkey",
    "alter table intents drop constraint intents_deployment_uid_fkey",
    "alter table webhook_deliveries drop constraint webhook_deliveries_action_id_fkey",
)
# Rows of a deployment `d`, and of an action on one that is long gone.
INTENT = "insert into intents (deployment_uid, source, min_replicas, max_replicas) select uid, {} from deployments"
RELOCATION = """
    insert into relocations (deployment_uid, instance_id, epoch, workers, gpus, state, started_at, ended_at, copy_id)
    select uid, x.instance_id, 1, array['v'], '{{}}', x.state, x.started_at::timestamptz, x.ended_at::timestamptz,
           x.copy_id
      from deployments, (values ({})) as x (instance_id, state, started_at, ended_at, copy_id)"""
ACTION = """
    insert into policy_actions (at, policy, policy_generation, action, dry_run, deployment_uid, deployment, instances,
                                gpus, evidence)
    select now() - interval '1 hour', 'p', 1, x.action, x.dry_run, gen_random_uuid(), 'old', '{{}}', 1, '{{}}'
      from (values ({})) as x (action, dry_run)"""
WEBHOOK = """
    insert into webhook_deliveries (id, action_id, url, secret, payload, delivered, not_before)
    select gen_random_uuid(), (select max(id) from policy_actions), 'http://receiver', 's', '{{}}', x.delivered,
           x.not_before from (values ({})) as x (delivered, not_before)"""
_PLACED = {"scheduled", "starting", "running", "unhealthy"}


async def execute(db: Database, query: str, *args: Any) -> None:
    async with db.transaction() as connection:
        await connection.execute(query, *args)


async def unguarded(db: Database, *queries: str) -> None:
    """Breaks what the database itself would refuse, as a defect below it would."""
    async with db.transaction() as connection:
        for guard in _GUARDS:
            await connection.execute(guard)
        for query in queries:
            await connection.execute(query)


async def broken(db: Database) -> set[str]:
    async with db.snapshot() as connection:
        found = await audit(connection)
    assert found.ok == (not found.violations)
    assert found.checked == [invariant.name for invariant in INVARIANTS]
    return {violation.invariant for violation in found.violations}


@pytest.fixture
async def db(migrated: Database) -> Database:
    """Two workers; a running instance with a shared GPU, one alone on its GPU, one that waits."""
    host = await add_host(migrated, "w", gpus=3, gib=40)
    await add_host(migrated, "v", gpus=1, gib=40)
    uid = await add_deployment(migrated, "d", replicas=3)
    for instance, gpu, mib, exclusive in (("a", 0, 8 * GIB, False), ("b", 1, 40 * GIB, True)):
        await add_instance(migrated, uid, instance, phase="running", epoch=1)
        await claim(migrated, f"GPU-w-{gpu}", instance, mib, exclusive=exclusive)
        await claim(migrated, f"host-{host.id}", instance, GIB)
        await report(migrated, instance, "running")
    await add_instance(migrated, uid, "c", phase="pending")
    return migrated


async def test_a_consistent_ledger_passes(db: Database) -> None:
    assert await broken(db) == set()


@pytest.mark.parametrize("phase", sorted(InstancePhase))
async def test_phases_that_hold_claims_are_the_designs(db: Database, phase: InstancePhase) -> None:
    await execute(db, "update instances set phase = $1 where id = 'a'", phase.value)
    assert ("no_claims_without_phase" in await broken(db)) == (phase not in HOLDS_CLAIMS)
    await execute(db, "update instances set phase = $1 where id = 'c'", phase.value)
    assert ("placed_holds_claims" in await broken(db)) == (phase in _PLACED)


@pytest.mark.parametrize(
    ("invariant", "queries"),
    [
        ("counters_match_claims", ["update devices set claimed_mib = 0, claims = 0 where uuid = 'GPU-w-0'"]),
        (
            "memory_not_overclaimed",
            ["insert into claims (device, instance_id, epoch, memory_mib) values ('GPU-w-0', 'b', 1, 40000)"],
        ),
        (
            "exclusive_is_alone",
            ["insert into claims (device, instance_id, epoch, memory_mib) values ('GPU-w-1', 'a', 1, 0)"],
        ),
        ("exclusive_is_whole", ["update claims set memory_mib = 1 where device = 'GPU-w-1'"]),
        (
            "rank_on_one_worker",
            ["insert into claims (device, instance_id, epoch, memory_mib) values ('GPU-v-0', 'a', 1, 0)"],
        ),
        (
            "worker_has_one_rank",
            ["insert into claims (device, instance_id, epoch, rank, memory_mib) values ('GPU-w-2', 'a', 1, 1, 0)"],
        ),
        ("old_epochs_are_fenced", ["update instances set epoch = 2 where id = 'a'"]),
        ("old_epochs_are_fenced", ["update instances set epoch = 0, phase = 'unreachable' where id = 'a'"]),
        ("no_claims_on_deleted_worker", ["update workers set deleted_at = now() - interval '2 min' where name = 'w'"]),
        ("live_process_holds_claims", ["delete from claims where instance_id = 'a'"]),
        (
            "exclusive_gpu_runs_one",
            ["insert into claims (device, instance_id, epoch, memory_mib) values ('GPU-w-1', 'a', 1, 0)"],
        ),
        (
            "no_start_without_claims",
            [
                """insert into commands (worker_id, instance_id, epoch, rank, verb, payload)
                   select id, 'c', 1, 0, 'start', '{}' from workers where name = 'w'"""
            ],
        ),
        ("instances_have_a_deployment", ["delete from deployments"]),
        ("revisions_exist", ["update deployments set revision = 7"]),
        (
            "tombstones_go",
            [
                """insert into deployments (uid, name, generation, revision, spec, deleted_at)
                   values (gen_random_uuid(), 'old', 1, 1, '{}', now() - interval '1 hour')"""
            ],
        ),
        ("no_silent_waiting", ["update instances set phase_since = now() - interval '1 hour' where id = 'c'"]),
        ("phases_are_known", ["update instances set phase = 'sleeping' where id = 'c'"]),
        ("one_lease", ["delete from lease"]),
        ("no_orphans", ["insert into intents values (gen_random_uuid(), 'user', 0)"]),
        ("intents_have_one_number", [INTENT.format("'user', 1, 1")]),
        ("intents_have_one_number", [INTENT.format("'autoscaler', 1, 2")]),
        ("relocations_end_once", [RELOCATION.format("'a', 'moved', now(), null, null")]),
        ("relocations_end_once", [RELOCATION.format("'a', 'waiting', null, now(), null")]),
        ("relocations_end_once", [RELOCATION.format("'a', 'moving', null, null, null")]),
        ("relocations_move_what_exists", [RELOCATION.format("'x', 'moving', now() - interval '1 hour', null, null")]),
        ("relocations_stay_in_their_deployment", [RELOCATION.format("'a', 'moving', now(), null, 'a'")]),
        ("only_limits_stay_open", [ACTION.format("'notify', false")]),
        ("only_limits_stay_open", [ACTION.format("'stop', true")]),
        ("actions_end_with_their_deployment", [ACTION.format("'stop', false")]),
        ("webhooks_end_once", [ACTION.format("'notify', false"), WEBHOOK.format("true, now()")]),
        ("webhooks_have_an_action", [WEBHOOK.format("false, now()")]),
        ("webhooks_are_due", [ACTION.format("'notify', false"), WEBHOOK.format("false, now() + interval '3 days'")]),
    ],
)  # fmt: skip
async def test_the_audit_reports_violations(db: Database, invariant: str, queries: list[str]) -> None:
    await unguarded(db, *queries)
    assert invariant in await broken(db)


async def test_every_invariant_is_shown_to_fail() -> None:
    marks = test_the_audit_reports_violations.pytestmark  # type: ignore[attr-defined]  # pytest hangs it there
    shown = {case[0] for mark in marks if mark.name == "parametrize" for case in mark.args[1]}
    by_phase = {"no_claims_without_phase", "placed_holds_claims"}
    assert shown | by_phase == {invariant.name for invariant in INVARIANTS}


async def test_a_fence_that_has_passed_excuses_the_lost(db: Database) -> None:
    await unguarded(db, "delete from claims where instance_id = 'a'",
                    "update instances set phase = 'stopping' where id = 'a'",
                    "update workers set phase = 'lost', fence_until = now() - interval '1 s' where name = 'w'",
                    "update devices set claimed_mib = 0, claims = 0 where uuid = 'GPU-w-0'")  # fmt: skip
    assert "live_process_holds_claims" not in await broken(db)
