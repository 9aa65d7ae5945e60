"""Mends the ledger without guessing. `repair.sql` has the statements; what they leave is named with a way out.

It all happens in one transaction that holds off every other writer, so what it finds is what it mends.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import asyncpg
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random

from controller.domain.events import NewEvent
from controller.store.core.audit import audit, plain
from controller.store.core.audit_results import write_audit_result
from controller.store.core.database import Connection, Database
from controller.store.core.events import write_events
from controller.store.core.notify import notify_all
from controller.store.core.sql_blocks import SqlBlock, read_blocks
from controller.store.core.ways_out import WAYS_OUT
from schemas.api.audit import AuditView, LedgerRepair, RepairView, UnmendedViolation
from schemas.api.view import to_plain

REPAIRS: Final = read_blocks(Path(__file__).parent / "repair.sql")
SHOWN: Final = 1000
_SHOWN_IN_EVENT: Final = 20
# Reads go on. Writers wait, also those that lock rows first: none of them is in the middle of a change.
_HOLD_WRITERS: Final = """
    lock table deployments, instances, workers, devices, claims, processes, commands, intents, policy_verdicts,
               relocations, policy_actions, webhook_deliveries in exclusive mode"""
_HOLD_LIMIT: Final = "set local lock_timeout = '2s'"
_WAKE: Final = {"deployment": ["*"], "worker": ["*"], "command": ["*"], "relocation": ["all"]}


class _UndoError(Exception):
    """Ends the transaction of a dry run, with what it found."""

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
    """Audits, mends and audits again.

    Args:
        database: where.
        dry_run: nothing is kept; the answer says what would be.

    Raises:
        asyncpg.LockNotAvailableError: writers held the ledger for too long; repeat.
    """
    try:
        async with database.transaction() as connection:
            await connection.execute(_HOLD_LIMIT)
            await connection.execute(_HOLD_WRITERS)
            found = await audit(connection)
            mended = await _mend(connection) if found.violations else []
            left = await audit(connection) if mended else found
            view = _view(found, mended, left, dry_run=dry_run)
            await _keep(connection, view, left)
            return view
    except _UndoError as undone:
        return undone.view


async def _keep(connection: Connection, view: RepairView, left: AuditView) -> None:
    """Writes what is left and an event, and wakes the leader; undoes all of a dry run."""
    if view.dry_run:
        raise _UndoError(view)
    await write_audit_result(connection, left)
    if view.changes:
        await write_events(connection, [_event(view)])
        await notify_all(connection, _WAKE)


async def _mend(connection: Connection) -> list[LedgerRepair]:
    """Runs every statement. Counters come first and last: released claims are subtracted from them."""
    mended: list[LedgerRepair] = []
    for block in (*REPAIRS, REPAIRS[0]):
        mended += await _run(connection, block)
    return mended


async def _run(connection: Connection, block: SqlBlock) -> Iterable[LedgerRepair]:
    """One statement. What the database refuses is left as it was, and shows as left."""
    try:
        async with connection.transaction():
            rows: list[Any] = await connection.fetch(block.query)
    except asyncpg.IntegrityConstraintViolationError:
        return ()
    return [
        LedgerRepair(invariant=block.name, object=row["object"], before=plain(row["before"]), after=plain(row["after"]))
        for row in rows
    ]


def _view(found: AuditView, mended: list[LedgerRepair], left: AuditView, *, dry_run: bool) -> RepairView:
    return RepairView(
        ok=left.ok,
        dry_run=dry_run,
        found=found.violations,
        changes=len(mended),
        mended=mended[:SHOWN],
        left=[
            UnmendedViolation(
                invariant=one.invariant, message=one.message, evidence=one.evidence, way_out=WAYS_OUT[one.invariant]
            )
            for one in left.violations
        ],
    )


def _event(view: RepairView) -> NewEvent:
    invariants = sorted({one.invariant for one in view.mended})
    message = f"the ledger was repaired: {view.changes} changes, of {', '.join(invariants)}"
    if view.left:
        message += f"; {len(view.left)} violations are left"
    shown = [to_plain(one) for one in view.mended[:_SHOWN_IN_EVENT]]
    return NewEvent(
        "ledger_repaired",
        message,
        ("controller:leader",),
        {"changes": view.changes, "mended": shown, "left": len(view.left)},
    )
