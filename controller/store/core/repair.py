"""Repairs the ledger without guessing. `repair.sql` has the statements; remaining violations get a remedy.

Audit and repair are one transaction, during which every other writer waits.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import asyncpg
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from controller.domain.events import NewEvent
from controller.store.core.database import Connection, Database
from controller.store.core.events import notify_all, write_events
from controller.store.core.ledger_audit import SqlBlock, audit, plain, read_blocks, write_audit_result
from schemas.api.audit import AuditView, LedgerRepair, RepairView, UnmendedViolation
from schemas.api.view import to_plain

REPAIRS: Final = read_blocks(Path(__file__).parent / "repair.sql")
SHOWN: Final = 1000
_SHOWN_IN_EVENT: Final = 20
# Readers continue. Writers wait, also those that lock rows first: no change is half done.
_HOLD_WRITERS: Final = """
    lock table deployments, instances, workers, devices, claims, processes, commands, intents, policy_verdicts,
               relocations, policy_actions, webhook_deliveries in exclusive mode"""
_HOLD_LIMIT: Final = "set local lock_timeout = '2s'"
_WAKE: Final = {"deployment": ["*"], "worker": ["*"], "command": ["*"], "relocation": ["all"]}
_RESTART: Final = (
    "stop its deployment with `gpuward stop NAME` and start it again: claims go on proof, and others are made"
)
_REPORT: Final = "report it with the output of `gpuward audit -o json`; nothing needs to stop meanwhile"
REMEDIES: Final[Mapping[str, str]] = {
    "counters_match_claims": "its claims exceed the device: scale down or stop a deployment on it, then repair again",
    "memory_not_overclaimed": "scale down or stop a deployment on the device: their claims exceed it",
    "exclusive_is_alone": "scale down or stop a deployment on the device: one of them has it to itself",
    "exclusive_is_whole": _RESTART,
    "no_claims_without_phase": "a process may still run there: wait for its worker, or confirm that the host is dead "
    "with `gpuward delete worker NAME --confirm-dead`, then repair again",
    "placed_holds_claims": _RESTART,
    "rank_on_one_worker": _RESTART,
    "worker_has_one_rank": _RESTART,
    "old_epochs_are_fenced": "a process of the older start may still run: wait for its worker, or confirm that the "
    "host is dead with `gpuward delete worker NAME --confirm-dead`, then repair again",
    "no_claims_on_deleted_worker": "the leader releases them once it works: see the log of that controller",
    "live_process_holds_claims": "the process runs on GPUs that others may get: stop its deployment, or cordon "
    "the worker until it has ended",
    "exclusive_gpu_runs_one": "two processes are on a GPU that one has to itself: stop one of their deployments",
    "no_start_without_claims": _REPORT,
    "instances_have_a_deployment": "nothing ends the instance: drain its workers, then restore a backup or report it",
    "revisions_exist": "apply the deployment's manifest again: that writes a new revision",
    "tombstones_go": "the leader removes it once it works: see the log of that controller",
    "no_silent_waiting": "the leader decides about it once it works: see the log of that controller",
    "phases_are_known": "a newer version may have written it: run that version, or restore a backup",
    "one_lease": "stop all controllers, then restore a backup: the term must exceed each that an agent has seen",
    "no_orphans": "a claim or a live process is left of what is gone: drain the worker, delete it and join it again",
    "intents_have_one_number": "set the number with `gpuward scale NAME N`, or apply the manifest again",
    "relocations_end_once": _REPORT,
    "relocations_move_what_exists": _REPORT,
    "relocations_stay_in_their_deployment": "stop the deployment and start it again: that ends its relocations",
    "only_limits_stay_open": _REPORT,
    "actions_end_with_their_deployment": _REPORT,
    "webhooks_end_once": _REPORT,
    "webhooks_have_an_action": _REPORT,
    "webhooks_are_due": _REPORT,
}


class _UndoError(Exception):
    """Ends the transaction of a dry run, with its result."""

    def __init__(self, view: RepairView) -> None:
        super().__init__("dry run")
        self.view = view


@retry(
    retry=retry_if_exception_type((asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)),
    stop=stop_after_attempt(4),
    wait=wait_random(0.05, 0.3),
    reraise=True,
)
async def repair(database: Database, *, dry_run: bool) -> RepairView:
    """Audits, repairs and audits again. With `dry_run` nothing is kept.

    Raises:
        asyncpg.LockNotAvailableError: writers held the ledger for too long; repeat.
    """
    try:
        async with database.transaction() as connection:
            await connection.execute(_HOLD_LIMIT)
            await connection.execute(_HOLD_WRITERS)
            before = await audit(connection)
            repairs = await _repair(connection) if before.violations else []
            left = await audit(connection) if repairs else before
            view = _view(before, repairs, left, dry_run=dry_run)
            await _keep(connection, view, left)
            return view
    except _UndoError as undone:
        return undone.view


async def _keep(connection: Connection, view: RepairView, left: AuditView) -> None:
    """Writes the remaining violations and an event, and wakes the leader; undoes a dry run."""
    if view.dry_run:
        raise _UndoError(view)
    await write_audit_result(connection, left)
    if view.changes:
        await write_events(connection, [_event(view)])
        await notify_all(connection, _WAKE)


async def _repair(connection: Connection) -> list[LedgerRepair]:
    """Runs every statement. Counters come first and last: released claims are subtracted from them."""
    repairs: list[LedgerRepair] = []
    for block in (*REPAIRS, REPAIRS[0]):
        repairs += await _run(connection, block)
    return repairs


async def _run(connection: Connection, block: SqlBlock) -> Iterable[LedgerRepair]:
    """Runs one statement. If the database refuses it, the violation remains."""
    try:
        async with connection.transaction():
            rows: list[Any] = await connection.fetch(block.query)
    except asyncpg.IntegrityConstraintViolationError:
        return ()
    return [
        LedgerRepair(invariant=block.name, object=row["object"], before=plain(row["before"]), after=plain(row["after"]))
        for row in rows
    ]


def _view(before: AuditView, repairs: list[LedgerRepair], left: AuditView, *, dry_run: bool) -> RepairView:
    return RepairView(
        ok=left.ok,
        dry_run=dry_run,
        found=before.violations,
        changes=len(repairs),
        mended=repairs[:SHOWN],
        left=[
            UnmendedViolation(
                invariant=v.invariant, message=v.message, evidence=v.evidence, way_out=REMEDIES[v.invariant]
            )
            for v in left.violations
        ],
    )


def _event(view: RepairView) -> NewEvent:
    invariants = sorted({repair.invariant for repair in view.mended})
    message = f"the ledger was repaired: {view.changes} changes, of {', '.join(invariants)}"
    if view.left:
        message += f"; {len(view.left)} violations are left"
    shown = [to_plain(repair) for repair in view.mended[:_SHOWN_IN_EVENT]]
    return NewEvent(
        "ledger_repaired",
        message,
        ("controller:leader",),
        {"changes": view.changes, "mended": shown, "left": len(view.left)},
    )
