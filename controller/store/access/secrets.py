"""Secrets: written by users, resolved when a command is dispatched, never returned by the API."""

from collections.abc import Iterable

from sqlalchemy import func
from sqlalchemy.dialects.postgresql import insert

from controller.domain.events import NewEvent
from controller.store.access.orm_rows import SecretRow
from controller.store.core.database import Database
from controller.store.core.events import write_event_in_session
from controller.store.core.refusals import NotFoundError


async def put_secret(database: Database, name: str, value: str) -> None:
    """Stores a secret; replaces an older one of that name."""
    fresh = insert(SecretRow).values(name=name, value=value)
    changed = fresh.on_conflict_do_update(
        index_elements=["name"], set_={"value": fresh.excluded.value, "updated_at": func.now()}
    )
    async with database.session() as session:
        await session.execute(changed)
        await write_event_in_session(session, NewEvent("secret_set", f"secret {name} was set", (f"secret:{name}",)))


async def delete_secret(database: Database, name: str) -> None:
    """Removes a secret; running processes keep the value that they were started with.

    Raises:
        NotFoundError: no secret has this name.
    """
    async with database.session() as session:
        row = await session.get(SecretRow, name)
        if row is None:
            raise NotFoundError(f"no secret is named {name!r}")
        await session.delete(row)
        event = NewEvent("secret_deleted", f"secret {name} was deleted", (f"secret:{name}",))
        await write_event_in_session(session, event)


async def resolve_secrets(database: Database, names: Iterable[str]) -> dict[str, str]:
    """The values of these secrets; unknown names are missing from the answer."""
    async with database.connection() as connection:
        rows = await connection.fetch("select name, value from secrets where name = any($1)", sorted(set(names)))
    return {row["name"]: row["value"] for row in rows}
