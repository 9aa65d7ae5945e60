"""What every change of a deployment by its user does: an event, a notification, and old limits that end."""

import uuid
from typing import Any

from controller.domain.events import NewEvent
from controller.store.core.events import write_events
from controller.store.core.notify import notify_all


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
    """Writes the event and the notification of one change. `scaled`: replicas follow the requests, or did so."""
    evidence = {} if new is None else {"old_generation": old, "generation": new}
    await write_events(connection, [NewEvent(reason, message, (f"deployment:{uid}",), evidence)])
    await notify_all(connection, {"deployment": [str(uid)], "scaling": [str(uid)] if scaled else []})


async def clear_limits(connection: Any, uid: uuid.UUID) -> bool:
    """Removes the limits of `stop` and of policies; returns whether there were any."""
    query = "delete from intents where deployment_uid = $1 and source in ('user', 'policy')"
    status: str = await connection.execute(query, uid)
    return status != "DELETE 0"
