"""The controller's health: the event loop's lag, and the checks behind /readyz."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from controller.api.context import Check
from controller.live.database import DATABASE_KEPT_S
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.feed import ChangeFeed
from controller.store.core.database import Database
from controller.store.core.ledger_audit import read_audit_result
from controller.store.core.migrate import head_revision, read_revision, why_outdated
from schemas.database_disk import DATABASE_DISK_LOW, DATABASE_FULL, DATABASE_FULL_TEXT

_TICK_S: Final = 0.25
_REMEMBER_S: Final = 10.0
_CHECK_LIMIT_S: Final = 3.0
_OLDEST_PROBE_S: Final = 10.0


class LoopLag:
    """Measures the event loop's lag; keeps the worst of the last ten seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._worst: list[tuple[float, float]] = []  # (when, lag), lags falling
        self._due = clock.monotonic() + _TICK_S

    async def run(self) -> None:
        while True:
            self._due = self._clock.monotonic() + _TICK_S
            await self._clock.sleep(_TICK_S)
            self._note(max(0.0, self._clock.monotonic() - self._due))

    def _note(self, lag_s: float) -> None:
        now = self._clock.monotonic()
        self._worst = [(at, lag) for at, lag in self._worst if now - at < _REMEMBER_S and lag > lag_s]
        self._worst.append((now, lag_s))

    def seconds(self) -> float:
        """The worst recent lag, including a tick that is overdue now."""
        now = self._clock.monotonic()
        recent = [lag for at, lag in self._worst if now - at < _REMEMBER_S]
        return max([0.0, now - self._due, *recent])


class Readiness:
    """The checks behind /readyz: database and its disk, migrations, ledger, feed, leader, client.env, certificate.

    It needs no key. So the database gets these queries once at a time, and answers are kept for `DATABASE_KEPT_S`.
    """

    def __init__(
        self,
        database: Database,
        feed: ChangeFeed,
        leader_known: Callable[[], Awaitable[str]],
        client_env_written: Callable[[], bool],
        certificate: Callable[[], Check] | None = None,
    ) -> None:
        self._database = database
        self._feed = feed
        self._leader_known = leader_known
        self._client_env_written = client_env_written
        self._certificate = certificate
        self._querying = asyncio.Lock()
        self._kept: tuple[float, dict[str, Check]] = (float("-inf"), {})

    async def __call__(self) -> Mapping[str, Check]:
        loop = asyncio.get_running_loop()
        async with self._querying:
            queried_s, database = self._kept
            if loop.time() - queried_s >= DATABASE_KEPT_S:
                database = await self._query_database()
                self._kept = (loop.time(), database)
        written = self._client_env_written()
        return {
            **database,
            "database_space": self._space(),
            "listener": self._listens(),
            "client_env": Check(ok=written, message="" if written else "client.env is not written yet"),
            **({} if self._certificate is None else {"certificate": self._certificate()}),
        }

    async def _query_database(self) -> dict[str, Check]:
        checks = {
            "database": self._answers(),
            "migrations": self._migrated(),
            "ledger": self._audited(),
            "leader": self._leader_known(),
        }
        return dict(zip(checks, await asyncio.gather(*map(_checked, checks.values())), strict=True))

    async def _answers(self) -> str:
        await self._database.ping()
        return ""

    async def _migrated(self) -> str:
        async with self._database.connection() as connection:
            revision = await read_revision(connection)
            if (why := await why_outdated(connection)) is not None:
                raise OSError(why)
        if revision != head_revision():
            raise OSError(f"the schema is at {revision}, this version needs {head_revision()}")
        return str(revision)

    async def _audited(self) -> str:
        """The result of the last audit, also of another controller."""
        async with self._database.connection() as connection:
            result = await read_audit_result(connection)
        if result.broken:
            broken = ", ".join(f"{name} ({count})" for name, count in result.broken.items())
            raise OSError(f"invariants are broken: {broken}; run `gpuward audit`")
        return "not audited yet" if result.age_s is None else f"audited {result.age_s:.0f} s ago"

    def _space(self) -> Check:
        space = self._database.space
        if space.full:
            return Check(ok=False, message=f"{DATABASE_FULL}: {DATABASE_FULL_TEXT}")
        return Check(ok=True, message=f"{DATABASE_DISK_LOW}: {space.low}" if space.low else "")

    def _listens(self) -> Check:
        age = self._feed.last_probe_age_s
        if age is None:
            return Check(ok=False, message="the change feed is not connected")
        return Check(ok=age < _OLDEST_PROBE_S, message=f"last probe answered {age:.1f} s ago")


async def _checked(check: Awaitable[str]) -> Check:
    try:
        async with asyncio.timeout(_CHECK_LIMIT_S):
            return Check(ok=True, message=await check)
    except DATABASE_ERRORS as error:
        return Check(ok=False, message=str(error) or type(error).__name__)
