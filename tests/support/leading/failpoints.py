"""Failpoints at every await of the reconcilers, set from outside: the product does not know them.

The reconcilers get a `FailingDatabase`. Each use of it (taking a connection, BEGIN, every statement, COMMIT) first
asks `Failpoints`, which sees at which awaits the callers stand and decides whether one of them fails.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import asyncpg

from controller.store.core.database import Database
from support.leading.awaits import Awaits

_GONE_LIMIT_S = 10.0


class Kind(StrEnum):
    """What happens at a failpoint. `after`: the server carried the statement out, but the answer is lost."""

    REFUSED = "refused"  # the server answers with an error, or no connection is free
    LOST_BEFORE = "lost_before"  # the backend is gone
    LOST_AFTER = "lost_after"
    HUNG = "hung"  # no answer, until the step's deadline
    KILLED_BEFORE = "killed_before"  # the controller ends here
    KILLED_AFTER = "killed_after"

    @property
    def deadly(self) -> bool:
        """Whether it ends the controller, so that another takes over."""
        return self in (Kind.KILLED_BEFORE, Kind.KILLED_AFTER)


class UnreachedError(AssertionError):
    """A scenario ended without passing the await that should fail."""


@dataclass
class Failpoints:
    """The awaits that are passed, and what happens there. `wants` decides about awaits, innermost first."""

    awaits: Awaits
    kind: Kind = Kind.REFUSED
    wants: Callable[[tuple[str, ...]], bool] = lambda _: False
    passed: set[str] = field(default_factory=set)
    struck: str = ""  # where last
    strikes: int = 0
    deadline: asyncio.Timeout | None = None  # of the step that runs

    def due(self, *, leaving: bool = False) -> Kind | None:
        """Notes where the caller stands; returns the kind of fault where it fails there."""
        here = self.awaits.here(leaving=leaving)
        self.passed.update(here)
        if not here or not self.wants(here):
            return None
        self.struck, self.strikes = " < ".join(here), self.strikes + 1
        return self.kind

    async def hang(self) -> None:
        """Waits for the step's deadline, which is set to now."""
        if self.deadline is None:
            raise AssertionError("nothing limits the step that is to hang")
        self.deadline.reschedule(asyncio.get_running_loop().time())
        await asyncio.Event().wait()


async def end_here() -> None:
    """Ends the running task, as a shutdown or the loss of the lease would."""
    task = asyncio.current_task()
    if task is None:
        raise AssertionError("no task runs here")
    task.cancel()
    await asyncio.sleep(0)


async def cut(connection: Any, admin: "asyncpg.Pool[Any]") -> None:
    """Ends the connection's backend and waits until this side notices."""
    await admin.fetchval("select pg_terminate_backend($1)", connection.get_server_pid())
    async with asyncio.timeout(_GONE_LIMIT_S):
        while not connection.is_closed():  # noqa: ASYNC110 - the driver has no event for it
            await asyncio.sleep(0.001)


class FailingDatabase(Database):
    """A database whose connections pass the failpoints. It shares the pool; `admin` never fails."""

    def __init__(self, database: Database, points: Failpoints, admin: "asyncpg.Pool[Any]") -> None:
        super().__init__(database.dsn, database.pool)
        self._orm = database._orm
        self._points = points
        self._admin = admin

    @asynccontextmanager
    async def _held(self, transaction: Callable[[Any], AbstractAsyncContextManager[Any]]) -> AsyncIterator[Any]:
        match self._points.due():
            case Kind.REFUSED | Kind.LOST_BEFORE | Kind.LOST_AFTER:
                raise ConnectionRefusedError("struck: no connection")
            case Kind.HUNG:
                await self._points.hang()
            case Kind.KILLED_BEFORE | Kind.KILLED_AFTER:
                await end_here()
        async with super()._held(lambda _: nullcontext()) as connection:
            failing = FailingConnection(connection, self._points, self._admin)
            async with transaction(failing):
                yield failing


@dataclass
class FailingConnection:
    """A pooled connection, as far as the reconcilers use one."""

    real: Any
    points: Failpoints
    admin: "asyncpg.Pool[Any]"

    async def execute(self, *args: Any) -> Any:
        return await self.carry_out(self.points.due(), lambda: self.real.execute(*args))

    async def fetch(self, *args: Any) -> Any:
        return await self.carry_out(self.points.due(), lambda: self.real.fetch(*args))

    async def fetchval(self, *args: Any) -> Any:
        return await self.carry_out(self.points.due(), lambda: self.real.fetchval(*args))

    async def fetchrow(self, *args: Any) -> Any:
        return await self.carry_out(self.points.due(), lambda: self.real.fetchrow(*args))

    def transaction(self, **options: Any) -> "_FailingTransaction":
        return _FailingTransaction(self, self.real.transaction(**options))

    async def carry_out(self, kind: Kind | None, operation: Callable[[], Awaitable[Any]]) -> Any:
        """Carries it out, unless it fails here."""
        match kind:
            case None:
                return await operation()
            case Kind.REFUSED:
                await self.real.execute("do $$ begin raise exception 'struck' using errcode = '40P01'; end $$")
            case Kind.LOST_BEFORE:
                await cut(self.real, self.admin)
                await operation()
            case Kind.LOST_AFTER:
                await operation()
                await cut(self.real, self.admin)
            case Kind.HUNG:
                await self.points.hang()
            case Kind.KILLED_BEFORE:
                await end_here()
            case Kind.KILLED_AFTER:
                await operation()
                await end_here()
        raise asyncpg.ConnectionDoesNotExistError("struck: connection was closed in the middle of operation")


@dataclass
class _FailingTransaction:
    """BEGIN and COMMIT pass the failpoints; ROLLBACK does not, since it follows a failure."""

    connection: FailingConnection
    real: Any

    async def __aenter__(self) -> None:
        await self.connection.carry_out(self.connection.points.due(), self.real.__aenter__)

    async def __aexit__(self, *error: object) -> None:
        if error[0] is not None:
            await self.real.__aexit__(*error)
            return
        kind = self.connection.points.due(leaving=True)
        ended = False

        async def commit() -> None:
            nonlocal ended
            ended = True
            await self.real.__aexit__(None, None, None)

        try:
            await self.connection.carry_out(kind, commit)
        except BaseException as struck:
            if not ended:
                await self.real.__aexit__(type(struck), struck, struck.__traceback__)
            raise
