"""The locked row of a live deployment, for what users ask of it."""

from typing import Any, Final

from controller.store.core.refusals import GenerationConflictError, NotFoundError

LIVE: Final = "select * from deployments where name = $1 and deleted_at is null for no key update"


async def live_row(connection: Any, name: str, if_match: int | None = None) -> Any:
    """Locks and returns the row.

    Raises:
        NotFoundError: no live deployment has this name.
        GenerationConflictError: it is not at generation `if_match`.
    """
    row = await connection.fetchrow(LIVE, name)
    if row is None:
        raise missing(name)
    if if_match is not None and row["generation"] != if_match:
        raise GenerationConflictError(name, wanted=if_match, found=row["generation"])
    return row


def missing(name: str) -> NotFoundError:
    """The error for a name that no live deployment has."""
    return NotFoundError(f"no deployment is named {name!r}; `gpuward get deployments` lists them")
