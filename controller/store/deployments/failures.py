"""Makes a failing reconcile step visible: an event, and the deployment's reason and message."""

import uuid
from typing import Final

from controller.domain.events import NewEvent
from controller.store.core.database import Database
from controller.store.core.events import notify, write_events

REASON: Final = "reconcile_failing"


async def record_quarantine(database: Database, kind: str, key: str, error: str, attempts: int) -> None:
    """Records that `key` of the loop `kind` failed `attempts` times in a row, the last time with `error`."""
    await _record(database, kind, key, attempts, f"the {kind} step fails ({attempts} times so far): {error}")


async def record_failure(database: Database, kind: str, key: str, error: str) -> None:
    """Records that `key` of the loop `kind` failed with `error`, which repeating cannot cure."""
    await _record(database, kind, key, 1, f"the {kind} step failed: {error}")


async def _record(database: Database, kind: str, key: str, attempts: int, message: str) -> None:
    """Writes the event and, for an instance step, the deployment's condition. Its next successful step clears that."""
    uid = _as_uid(key) if kind == "instance" else None
    objects = (f"deployment:{uid}",) if uid is not None else ("controller:leader",)
    async with database.transaction() as connection:
        await write_events(connection, [NewEvent(REASON, message, objects, {"kind": kind, "attempts": attempts})])
        if uid is not None:
            await connection.execute(
                "update deployments set reason = $2, message = $3 where uid = $1", uid, REASON, message
            )
            await notify(connection, "status", [str(uid)])


def _as_uid(key: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(key)
    except ValueError:
        return None
