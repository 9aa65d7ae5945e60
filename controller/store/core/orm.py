"""SQLAlchemy's sessions over the same database, for single rows; their errors are the driver's."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg
import orjson
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError, PendingRollbackError
from sqlalchemy.exc import InterfaceError as OrmInterfaceError
from sqlalchemy.exc import TimeoutError as OrmTimeoutError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from controller.domain.events import NewEvent
from controller.store.core.events import current_actor
from controller.store.core.server_sessions import ACQUIRE_TIMEOUT_S

_POOL_SIZE: Final = 8


class Orm:
    """An engine with its own pool, which connects when it is first used."""

    def __init__(self, connect: "Callable[[], Awaitable[asyncpg.Connection[Any]]]") -> None:
        self._engine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=connect,
            pool_size=_POOL_SIZE,
            max_overflow=0,
            pool_timeout=ACQUIRE_TIMEOUT_S,
            pool_pre_ping=True,
            json_serializer=lambda value: orjson.dumps(value).decode(),
            json_deserializer=orjson.loads,
        )
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        """A session inside a transaction, committed at the end; see `Database.session`."""
        try:
            async with self._sessions.begin() as session:
                yield session
        except DBAPIError as error:
            raise _driver_error(error) from error
        except OrmTimeoutError as error:
            raise TimeoutError(str(error)) from error
        except (DisconnectionError, PendingRollbackError) as error:
            raise ConnectionError(str(error)) from error

    async def dispose(self, *, close: bool) -> None:
        """Drops all connections; `close`: closes them properly, which waits for the server."""
        await self._engine.dispose(close=close)


def _driver_error(error: DBAPIError) -> BaseException:
    """The driver's own error, which the ORM wraps twice; a ConnectionError if there is none."""
    if error.orig is not None and error.orig.__cause__ is not None:
        return error.orig.__cause__
    lost = isinstance(error, OperationalError | OrmInterfaceError) or error.connection_invalidated
    return ConnectionError(str(error)) if lost else error


async def write_event_in_session(session: AsyncSession, event: NewEvent) -> None:
    """Appends one event in the transaction of an ORM session."""
    await session.flush()  # rows that the event names must be there
    actor = current_actor()
    await session.execute(
        text(
            """insert into events (reason, message, evidence, objects, actor, request_id, subjects)
               select x.*, event_subjects(x.objects, x.evidence)
                 from (select cast(:reason as text), cast(:message as text), cast(:evidence as jsonb) as evidence,
                              string_to_array(:objects, E'\n') as objects, cast(:actor as text),
                              cast(:request_id as text)) x"""
        ),
        {
            "reason": event.reason,
            "message": event.message,
            "evidence": orjson.dumps(dict(event.evidence)).decode(),
            "objects": "\n".join(event.objects),
            "actor": event.actor or actor.name,
            "request_id": actor.request_id,
        },
    )
