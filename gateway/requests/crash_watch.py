"""Requests that crash engines: what this gateway had in flight at ends, and what all gateways know of them.

A request is refused where it crashed engines, wherever that was: see `controller.domain.crashed_requests`.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from math import ceil
from typing import Any, Final

import structlog

from controller.live.change_fanout import ChangeFanout
from controller.live.crashed_requests import (
    ANSWERED_S,
    ENDS,
    UNDECIDED_S,
    RequestAtEnd,
    Suspicion,
    answered_at_ends,
    read_ends,
    read_requests_at_ends,
    suspicions,
    write_requests_at_ends,
)
from controller.live.endpoints import DATABASE_ERRORS, Database, Endpoint
from gateway.errors import NO_RETRY, GatewayError

log = structlog.get_logger(__name__)

WAIT_S: Final = 4.0  # for which a request waits until it is known whether it crashed an engine; less than a state lasts
_SHARED_S: Final = 0.5  # for which a client waits at most for the error until other gateways know of it
_READ_S: Final = 0.1  # that others take to read it, once it is written
_PERIOD_S: Final = 2.0
_SOON_S: Final = 0.25  # while something is undecided
_SPACING_S: Final = 0.02
_LIMIT_S: Final = 5.0
_MOST_UNWRITTEN: Final = 10_000  # while the database is away
_MOST_ERRORS: Final = 10_000  # the newest
_ERRORS_S: Final = ANSWERED_S + _PERIOD_S + _LIMIT_S  # for which one is kept, until the end that follows is read
_ERRORS: Final[tuple[type[Exception], ...]] = (*DATABASE_ERRORS, TimeoutError)
_PROCESS: Final = "process"


class CrashWatch:
    """Requests that were in flight when engines ended, and the task that shares them.

    Args:
        database: None: this gateway knows only its own ends, and judges none.

    Attributes:
        task: runs from `start` to `stop`. It ends earlier only by a defect.
        suspicions: requests that are refused or suspected, by digest.
    """

    def __init__(self, database: Database | None = None) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._ends: list[RequestAtEnd] = []  # with their ages at `_read_at`
        self._read_at = self._loop.time()
        self._unwritten: dict[tuple[str, int, bytes], float] = {}  # when each happened
        self._errors: dict[tuple[str, int, bytes], float] = {}  # when each was answered, the oldest first
        self.suspicions: dict[bytes, Suspicion] = {}
        self._judged_at = 0.0
        self._poked = asyncio.Event()
        self._next: asyncio.Future[None] = self._loop.create_future()  # set at the next reading
        self._away = False
        self.task: asyncio.Task[None] | None = None

    def start(self, changes: ChangeFanout) -> None:
        self.task = asyncio.create_task(self._run(changes), name="crash-watch")

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task], timeout=_LIMIT_S)

    def note(self, endpoint: Endpoint, request: bytes) -> None:
        """A request was in flight when the connection to its engine ended. `request`: its digest."""
        name = endpoint.instance, endpoint.epoch, request
        if len(self._unwritten) < _MOST_UNWRITTEN and name not in self._unwritten:
            self._unwritten[name] = now = self._loop.time()
            self._suspect(request, now)
            self._poked.set()

    def note_error(self, endpoint: Endpoint, request: bytes) -> None:
        """An engine answered a request with an error of its own: it may be about to end. `request`: its digest."""
        name = endpoint.instance, endpoint.epoch, request
        self._errors.pop(name, None)
        self._errors[name] = self._loop.time()
        if len(self._errors) > _MOST_ERRORS:
            del self._errors[next(iter(self._errors))]

    def _suspect(self, request: bytes, now: float) -> None:
        """Judges what has just happened alone: an engine may end with thousands, and all would be judged at each."""
        left_s = now - self._judged_at + UNDECIDED_S
        suspicion = self.suspicions.get(request)
        if suspicion is None or (not suspicion.crashes and suspicion.left_s < left_s):
            self.suspicions[request] = Suspicion(0, left_s)

    def suspicion(self, request: bytes) -> Suspicion | None:
        """The suspicion against a request; None without one."""
        suspicion = self.suspicions.get(request)
        if suspicion is not None and suspicion.left_s <= self._loop.time() - self._judged_at:
            self._judge()  # time alone may have decided it
            suspicion = self.suspicions.get(request)
        if suspicion is None:
            return None
        return replace(suspicion, left_s=suspicion.left_s - (self._loop.time() - self._judged_at))

    async def decided(self, request: bytes, limit_s: float = WAIT_S) -> None:
        """Waits until nothing about a request is undecided, at most `limit_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while (suspicion := self.suspicion(request)) is not None and not suspicion.crashes:
                    await asyncio.wait([self._next], timeout=suspicion.left_s)

    @property
    def shares(self) -> bool:
        """Whether other gateways get to know of ends here."""
        return self.task is not None and not self._away

    async def shared(self) -> None:
        """Waits until other gateways know of all ends here: a client may repeat a request at once, at any of them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHARED_S):
                while self._unwritten and self.shares:
                    await asyncio.wait([self._next])
                await asyncio.sleep(_READ_S)

    def _judge(self) -> None:
        now = self._loop.time()
        aged = [replace(end, age_s=end.age_s + now - self._read_at) for end in self._ends]
        known = {(end.instance, end.epoch, end.request) for end in aged}
        aged += [RequestAtEnd(*name, now - at, None) for name, at in self._unwritten.items() if name not in known]
        self.suspicions, self._judged_at = dict(suspicions(aged)), now

    async def _run(self, changes: ChangeFanout) -> None:
        with changes.woken_by(ENDS, self._poked.set), changes.woken_by(_PROCESS, self._poke_if_awaited):
            while True:
                this, self._next = self._next, self._loop.create_future()
                await self._exchange()
                this.set_result(None)
                await asyncio.sleep(_SPACING_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SOON_S if self._undecided() else _PERIOD_S):
                        await self._poked.wait()
                self._poked.clear()

    def _undecided(self) -> bool:
        return any(not suspicion.crashes for suspicion in self.suspicions.values())

    def _poke_if_awaited(self) -> None:
        """An end that others report may decide something."""
        if self._errors or self._undecided():
            self._poked.set()

    async def _exchange(self) -> None:
        if self._database is None:
            return
        try:
            async with asyncio.timeout(_LIMIT_S), self._database.transaction() as connection:
                await self._count_errors(connection)
                writing = tuple(self._unwritten)
                if writing:
                    await write_requests_at_ends(connection, writing)
                ends = await read_requests_at_ends(connection)
        except _ERRORS as error:
            if not self._away:
                why = str(error) or type(error).__name__
                log.warning("requests that crash engines not read, going on with what is known", error=why)
            self._away = True
        else:
            self._away = False
            for name in writing:
                self._unwritten.pop(name, None)
            self._ends, self._read_at = ends, self._loop.time()
        self._judge()

    async def _count_errors(self, connection: Any) -> None:
        """Counts what was answered with an error shortly before its engine ended as in flight at that end."""
        oldest = self._loop.time() - _ERRORS_S
        self._errors = {name: at for name, at in self._errors.items() if at > oldest}
        if not self._errors:
            return
        ages_s = await read_ends(connection, {name[:2] for name in self._errors})
        now = self._loop.time()
        for name in answered_at_ends(self._errors, {epoch: now - age_s for epoch, age_s in ages_s.items()}):
            del self._errors[name]
            if len(self._unwritten) < _MOST_UNWRITTEN:
                self._unwritten.setdefault(name, now)


def request_digest(key: str, deployment: str, body: bytes) -> bytes:
    """A digest of a request's key (id), deployment (uid) and body's digest."""
    return sha256(b"\0".join((key.encode(), deployment.encode(), body))).digest()


def crashes_engine(model: str, suspicion: Suspicion) -> GatewayError:
    """422: the request crashes engines. Clients repeat statuses from 500 on, regardless of headers."""
    left_s, engines = ceil(suspicion.left_s), "an engine" if suspicion.crashes == 1 else f"{suspicion.crashes} engines"
    return GatewayError(
        422,
        "crashes_engine",
        f"body: this request was in flight when {engines} of {model!r} crashed, and is refused for another {left_s} s; "
        "change it, or make it shorter",
        details={"crashes": suspicion.crashes, "refused_for_s": left_s},
        headers=NO_RETRY,
    )
