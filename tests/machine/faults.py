"""A database that fails on purpose before or after any statement (COMMIT's answer included), or pauses there.

The context of an action decides whether it fails, so two actions may interleave and only one of them fails.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import asyncpg

from controller.domain.effects import StaleError
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database

ACTION_LIMIT_S = 60.0
_IMPATIENT_MS = 100  # an action that runs while another is paused must not wait for the other's locks

Outcome = Literal["done", "stale", "failed", "cancelled"]


@dataclass
class Strike:
    """What happens at the `at`-th statement of an action; BEGIN, COMMIT and ROLLBACK count."""

    at: int = 0  # 0: nothing
    when: Literal["before", "after"] = "before"
    how: Literal["drop", "cancel", "pause"] = "drop"
    impatient: bool = False
    seen: int = 0
    struck: bool = False
    writing: bool = False  # in the middle of a transaction that may write
    paused: asyncio.Event = field(default_factory=asyncio.Event)
    resume: asyncio.Event = field(default_factory=asyncio.Event)


_STRIKE: ContextVar[Strike | None] = ContextVar("strike", default=None)


async def _at_statement(connection: "StruckConnection", run: Callable[[], Awaitable[Any]]) -> Any:
    strike = _STRIKE.get()
    if strike is None or strike.struck or not strike.at:
        return await run()
    strike.seen += 1
    if strike.seen != strike.at:
        return await run()
    strike.struck = True
    strike.writing = connection.writing and connection.raw.is_in_transaction()
    tally = connection.tally
    result = await run() if strike.when == "after" else None
    match strike.how:
        case "pause":
            tally["pauses"] += 1
            strike.paused.set()
            await strike.resume.wait()
        case "drop":
            tally["dropped"] += 1
            connection.raw.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        case "cancel":
            tally["cancelled"] += 1
            raise asyncio.CancelledError
    return result if strike.when == "after" else await run()


class StruckConnection:
    """A connection whose statements can be struck."""

    def __init__(self, raw: Any, tally: Counter[str]) -> None:
        self.raw = raw
        self.tally = tally
        self.writing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)

    async def fetch(self, *args: Any) -> Any:
        return await _at_statement(self, lambda: self.raw.fetch(*args))

    async def fetchrow(self, *args: Any) -> Any:
        return await _at_statement(self, lambda: self.raw.fetchrow(*args))

    async def fetchval(self, *args: Any) -> Any:
        return await _at_statement(self, lambda: self.raw.fetchval(*args))

    async def execute(self, *args: Any) -> Any:
        return await _at_statement(self, lambda: self.raw.execute(*args))

    async def executemany(self, *args: Any) -> Any:
        return await _at_statement(self, lambda: self.raw.executemany(*args))

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        transaction = self.raw.transaction(**options)
        committed = False
        self.writing = not options.get("readonly", False)

        async def commit() -> None:
            nonlocal committed
            await transaction.commit()
            committed = True

        try:
            await _at_statement(self, transaction.start)
            yield
            await _at_statement(self, commit)
        except BaseException:
            if committed:
                self.tally["commits without an answer"] += 1
            elif not self.raw.is_closed() and self.raw.is_in_transaction():
                await transaction.rollback()
            raise


class StruckDatabase(Database):
    """A `Database` whose connections are `StruckConnection`s."""

    tally: Counter[str]

    @classmethod
    async def begin(cls, dsn: str, tally: Counter[str]) -> "StruckDatabase":
        database = await cls.open(dsn, pool_size=6)
        assert isinstance(database, cls)
        database.tally = tally
        return database

    @asynccontextmanager
    async def _held(self, transaction: Callable[[Any], AbstractAsyncContextManager[Any]]) -> AsyncIterator[Any]:
        async with super()._held(lambda _: nullcontext()) as raw:
            await self._set_patience(raw)
            connection = StruckConnection(raw, self.tally)
            async with transaction(connection):
                yield connection

    async def listen_connection(self) -> Any:
        raw = await super().listen_connection()
        await self._set_patience(raw)
        return StruckConnection(raw, self.tally)

    async def _set_patience(self, raw: Any) -> None:
        strike = _STRIKE.get()
        if strike is not None and strike.impatient:
            await raw.execute(f"set lock_timeout = {_IMPATIENT_MS}")


def launch(action: Callable[[], Awaitable[Any]], strike: Strike) -> "asyncio.Task[None]":
    """Starts an action under a strike; `finish` returns its outcome."""

    async def run() -> None:
        _STRIKE.set(strike)
        async with asyncio.timeout(ACTION_LIMIT_S):
            await action()

    return asyncio.create_task(run(), name="action")


async def finish(task: "asyncio.Task[None]", strike: Strike) -> Outcome:
    """Waits for an action. Raises an error that its strike does not explain: that is a defect."""
    await asyncio.wait({task})
    if task.cancelled():
        assert strike.how == "cancel"
        assert strike.struck
        return "cancelled"
    error = task.exception()
    match error:
        case None:
            return "done"
        case StaleError():
            return "stale"
        case asyncpg.LockNotAvailableError() if strike.impatient:
            return "failed"
        case _ if isinstance(error, DATABASE_ERRORS) and strike.struck and strike.how == "drop":
            return "failed"
    raise error
