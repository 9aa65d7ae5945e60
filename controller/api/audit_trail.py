"""Writes the audit log: an entry for each request that may change something, and for each log that is read.

One task writes the entries in order. Answers to requests that changed rights, keys or secrets wait for their entry;
other answers do not. Entries that cannot be written appear in the process's log.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import ApiError, error_response, unavailable
from controller.api.middlewares import ERROR_CODE, REQUEST_ID, may_read_logs, route_of
from controller.api.route import Access, Route
from controller.live.same_origin import SAFE_METHODS
from controller.runtime.audited import AUDITED
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.tries import Tries, client_of
from controller.store.access.audit_log import Entry, Outcome, write_entries
from controller.store.core.database import Database

log = structlog.get_logger(__name__)

_BATCH: Final = 500
_MOST_WAITING: Final = 10_000
_RETRY_S: Final = 1.0
_WRITE_LIMIT_S: Final = 5.0
_STOP_LIMIT_S: Final = 2.0
_RECORD_LIMIT_S: Final = 10.0  # two tries to write
_REFUSED_A_MINUTE: Final = 60  # of one key; further ones are counted in the next entry
_STRANGERS_A_MINUTE: Final = 10  # of all that have no valid key
_READS_A_MINUTE: Final = 60  # of logs, by one key; further ones are counted in the next entry
_STRANGERS: Final = ""
_MOST_CHARS: Final = 300
_KEY_MATERIAL: Final = re.compile(r"gp[a-z]_[A-Za-z0-9_-]{8,}")
_API: Final = "/api/v1/"
_CUT, _REFUSED, _FAILED = 499, 400, 500
_OK, _FORBIDDEN = 200, 403


class NotRecordedError(Exception):
    """The database did not take an entry in time. The entry waits in memory and is written later."""


@dataclass(slots=True)
class _Waiting:
    entry: Entry
    stored: asyncio.Event = field(default_factory=asyncio.Event)


class AuditTrail:
    """Queues entries and writes them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[_Waiting] = deque()
        self._writing: list[_Waiting] = []
        self._more = asyncio.Event()
        self._refused = _Bounded(Tries(_REFUSED_A_MINUTE))
        self._strangers = _Bounded(Tries(_STRANGERS_A_MINUTE))
        self._reads = _Bounded(Tries(_READS_A_MINUTE))

    def note(self, entry: Entry) -> None:
        """Queues an entry. Beyond their bound, failed attempts are counted in a later entry."""
        self._take(entry)

    def note_read(self, entry: Entry) -> None:
        """Queues the entry of a log that is read. Beyond the bound of its key it is counted in a later entry."""
        self._take(entry, self._reads if entry.outcome == "done" else None)

    async def record(self, entry: Entry) -> None:
        """Queues an entry, and returns once it is in the database.

        Raises:
            NotRecordedError: the database did not take it in time.
        """
        waiting = self._take(entry)
        if waiting is None:
            return
        try:
            async with asyncio.timeout(_RECORD_LIMIT_S):
                await waiting.stored.wait()
        except TimeoutError as error:
            raise NotRecordedError from error

    def _take(self, entry: Entry, bounded: "_Bounded | None" = None) -> _Waiting | None:
        """The queued entry; None: its bound is reached, and a later entry counts it."""
        if entry.outcome != "done":
            bounded = self._refused if entry.key_id else self._strangers
        if bounded is not None:
            admitted = bounded.admit(entry, asyncio.get_running_loop().time())
            if admitted is None:
                return None
            entry = admitted
        if len(self._waiting) >= _MOST_WAITING:
            _log_unstored(self._waiting.popleft().entry, "too many entries wait for the database")
        waiting = _Waiting(entry)
        self._waiting.append(waiting)
        self._more.set()
        return waiting

    @property
    def pending(self) -> int:
        """Number of entries that are not in the database yet."""
        return len(self._waiting) + len(self._writing)

    async def run(self) -> None:
        """Writes until cancelled. While the database is away, entries wait."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                try:
                    await self.flush()
                except DATABASE_ERRORS as error:
                    log.warning("audit log not written, retried", error=str(error) or type(error).__name__)
                    await asyncio.sleep(_RETRY_S)

    async def flush(self) -> None:
        """Writes one batch. If that fails, it is queued again."""
        self._writing = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        try:
            async with asyncio.timeout(_WRITE_LIMIT_S), self._database.transaction() as connection:
                await write_entries(connection, [waiting.entry for waiting in self._writing])
        except BaseException:
            self._waiting.extendleft(reversed(self._writing))
            raise
        else:
            for waiting in self._writing:
                waiting.stored.set()
        finally:
            self._writing = []

    async def close(self) -> None:
        """Writes the remaining entries, or logs them."""
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                while self._waiting:
                    await self.flush()
        except DATABASE_ERRORS as error:
            for waiting in self._waiting:
                _log_unstored(waiting.entry, str(error) or type(error).__name__)


@dataclass(slots=True)
class _Bounded:
    """The bound by key of one kind of entries. `left_out`: number of entries dropped since the last kept one."""

    tries: Tries
    left_out: int = 0

    def admit(self, entry: Entry, now_s: float) -> Entry | None:
        """The entry with the number of dropped entries before it; None: it is dropped and counted."""
        if self.tries.begin(entry.key_id or _STRANGERS, now_s):
            self.left_out += 1
            return None
        left_out, self.left_out = self.left_out, 0
        return replace(entry, left_out=left_out)


TRAIL: Final = web.AppKey("TRAIL", AuditTrail)


async def audit_context(app: web.Application) -> AsyncIterator[None]:
    trail = app[TRAIL] = AuditTrail(app[CONTEXT].database)
    writing = asyncio.create_task(trail.run(), name="audit-log")
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.wait([writing], timeout=_STOP_LIMIT_S)
        await trail.close()


def is_recorded(route: Route) -> bool:
    """Whether requests to a route may change something. Plans and other reads by POST do not."""
    return route.method not in SAFE_METHODS and route.access not in (Access.READ, Access.ASK, Access.INFER)


def is_awaited(route: Route) -> bool:
    """Whether an answer waits for its entry: the request may change rights, keys or secrets, or is a join or login."""
    return is_recorded(route) and route.access in (Access.ADMINISTER, Access.OPEN)


def note_log_read(request: web.Request, object_: str, *, refused: bool = False) -> None:
    """Notes that the caller starts to read a log, or is refused. `object_`: `deployments/NAME/logs`."""
    route = route_of(request)
    if route is not None:
        entry = _entry(request, route, _FORBIDDEN if refused else _OK)
        object_ = _KEY_MATERIAL.sub("[redacted]", object_)[:_MOST_CHARS]
        request.app[TRAIL].note_read(replace(entry, object=object_, code="forbidden" if refused else ""))


def check_log_access(request: web.Request, object_: str) -> None:
    """Refuses a caller that may not read this log, such as `deployments/chat/logs`, and notes the refusal.

    Raises:
        ApiError: 403.
    """
    role = request[PRINCIPAL].role
    if not may_read_logs(role, viewers=request.app[CONTEXT].viewers_read_logs):
        note_log_read(request, object_, refused=True)
        fix = "use a key with one of: admin, operator; or let viewers read logs: GPUWARD_VIEWERS_READ_LOGS=true"
        raise ApiError(403, "forbidden", f"role {role} may not read logs here; {fix}")


@web.middleware
async def audit(request: web.Request, handler: Handler) -> web.StreamResponse:
    route = route_of(request)
    if route is None or not is_recorded(route):
        return await handler(request)
    try:
        response = await handler(request)
    except asyncio.CancelledError:
        request.app[TRAIL].note(_entry(request, route, _CUT))
        raise
    entry, trail = _entry(request, route, response.status), request.app[TRAIL]
    if entry.outcome != "done" or not is_awaited(route):
        trail.note(entry)
        return response
    try:
        await trail.record(entry)
    except NotRecordedError:
        message = "the change was made, but the audit log did not take its entry yet; see whether it is there"
        return error_response(unavailable("not_recorded", message), request_id=entry.request_id)
    return response


def _entry(request: web.Request, route: Route, status: int) -> Entry:
    principal, audited = request.get(PRINCIPAL), request.get(AUDITED)
    object_ = request.path.removeprefix(_API) if audited is None else audited.object
    actor = "" if audited is None else audited.actor
    return Entry(
        actor=actor if principal is None else f"key:{principal.name}",
        key_id="" if principal is None else principal.key_id,
        address=client_of(request.remote or "") if principal is None else request.remote or "",
        action=f"{route.method} {route.canonical}",
        object=_KEY_MATERIAL.sub("[redacted]", object_)[:_MOST_CHARS],
        outcome=_outcome(status),
        status=status,
        code=request.get(ERROR_CODE, "") if audited is None else audited.code,
        request_id=request[REQUEST_ID],
    )


def _outcome(status: int) -> Outcome:
    if status == _CUT:
        return "cut"
    return "done" if status < _REFUSED else "refused" if status < _FAILED else "failed"


def _log_unstored(entry: Entry, why: str) -> None:
    log.error("audit entry not stored", why=why, actor=entry.actor, action=entry.action, object=entry.object,
              outcome=entry.outcome, status=entry.status, request_id=entry.request_id)  # fmt: skip
