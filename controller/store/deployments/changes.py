"""The steps of each change that a user makes to a deployment: lock its row, end its limits, write an event, notify."""

import uuid
from typing import Any, Final

from controller.domain.events import NewEvent
from controller.store.core.events import notify_all, write_events
from controller.store.core.refusals import GenerationConflictError, NotFoundError

LIVE: Final = "select * from deployments where name = $1 and deleted_at is null for no key update"


async def live_row(connection: Any, name: str, if_match: int | None = None) -> Any:
    """Locks the row of a live deployment.

    Raises:
        NotFoundError: no live deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
    """
    row = await connection.fetchrow(LIVE, name)
    if row is None:
        raise missing(name)
    if if_match is not None and row["generation"] != if_match:
        raise GenerationConflictError(name, wanted=if_match, present=row["generation"])
    return row


def missing(name: str) -> NotFoundError:
    return NotFoundError(f"no deployment is named {name!r}; `gpuward get deployments` lists them")


async def record_change(
    connection: Any,
    uid: uuid.UUID,
    reason: str,
    message: str,
    *,
    old: int | None = None,
    new: int | None = None,
    scaled: bool = False,
) -> None:
    """Writes the event and the notification of a change. `scaled`: replicas follow the requests, or did so."""
    evidence = {} if new is None else {"old_generation": old, "generation": new}
    await write_events(connection, [NewEvent(reason, message, (f"deployment:{uid}",), evidence)])
    await notify_all(connection, {"deployment": [str(uid)], "scaling": [str(uid)] if scaled else []})


async def clear_limits(connection: Any, uid: uuid.UUID) -> bool:
    """Removes the limits of `stop` and of policies; returns whether there were any."""
    query = "delete from intents where deployment_uid = $1 and source in ('user', 'policy')"
    status: str = await connection.execute(query, uid)
    return status != "DELETE 0"
