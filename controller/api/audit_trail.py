"""Writes the audit log: an entry for each request that may change something, whatever comes of it.

Requests do not wait for it. One task writes what has come, in order. What cannot be written stands in the process's
log.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.login_limit import Tries, client_of
from controller.api.middlewares import ERROR_CODE, REQUEST_ID, route_of
from controller.api.route import Access, Route
from controller.runtime.audited import AUDITED
from controller.runtime.database import DATABASE_ERRORS
from controller.store.access.audit_log import Entry, Outcome, write_entries
from controller.store.core.database import Database
from http1.same_origin import SAFE_METHODS

log = structlog.get_logger(__name__)

_BATCH: Final = 500
_MOST_WAITING: Final = 10_000
_RETRY_S: Final = 1.0
_WRITE_LIMIT_S: Final = 5.0
_STOP_LIMIT_S: Final = 2.0
_REFUSED_A_MINUTE: Final = 60  # of one key; one more is counted in the next entry
_STRANGERS_A_MINUTE: Final = 10  # of all that have no valid key
_MOST_CHARS: Final = 300
_KEY_MATERIAL: Final = re.compile(r"gp[a-z]_[A-Za-z0-9_-]{8,}")
_API: Final = "/api/v1/"
_CUT, _REFUSED, _FAILED = 499, 400, 500


class AuditTrail:
    """Takes entries and writes them.

    Args:
        database: of the table.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[Entry] = deque()
        self._writing: list[Entry] = []
        self._more = asyncio.Event()
        self._refused = Tries(_REFUSED_A_MINUTE)
        self._strangers = Tries(_STRANGERS_A_MINUTE)
        self._left_out: dict[bool, int] = {True: 0, False: 0}  # by whether the caller is known

    def note(self, entry: Entry) -> None:
        """Takes an entry. Attempts that came to nothing are counted in a later one beyond their bound."""
        if entry.outcome != "done":
            known, now_s = bool(entry.key_id), asyncio.get_running_loop().time()
            tries, name = (self._refused, entry.key_id) if known else (self._strangers, "")
            if tries.begin(name, now_s):
                self._left_out[known] += 1
                return
            entry = _with_left_out(entry, self._left_out[known])
            self._left_out[known] = 0
        if len(self._waiting) >= _MOST_WAITING:
            _say(self._waiting.popleft(), "too many entries wait for the database")
        self._waiting.append(entry)
        self._more.set()

    @property
    def pending(self) -> int:
        """How many entries are not in the database yet."""
        return len(self._waiting) + len(self._writing)

    async def run(self) -> None:
        """Writes until cancelled; while the database is away entries wait."""
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
        """Writes one batch of what waits; where that fails it waits again."""
        self._writing = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
        try:
            async with asyncio.timeout(_WRITE_LIMIT_S), self._database.transaction() as connection:
                await write_entries(connection, self._writing)
        except BaseException:
            self._waiting.extendleft(reversed(self._writing))
            raise
        finally:
            self._writing = []

    async def close(self) -> None:
        """Writes the rest, or says it in the process's log."""
        try:
            async with asyncio.timeout(_STOP_LIMIT_S):
                while self._waiting:
                    await self.flush()
        except DATABASE_ERRORS as error:
            for entry in self._waiting:
                _say(entry, str(error) or type(error).__name__)


TRAIL: Final = web.AppKey("TRAIL", AuditTrail)


async def audit_context(app: web.Application) -> AsyncIterator[None]:
    """Writes with the app."""
    trail = app[TRAIL] = AuditTrail(app[CONTEXT].database)
    writing = asyncio.create_task(trail.run(), name="audit-log")
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.wait([writing], timeout=_STOP_LIMIT_S)
        await trail.close()


def is_recorded(route: Route) -> bool:
    """Whether requests to a route may change something: plans and other reads by POST do not."""
    return route.method not in SAFE_METHODS and route.access not in (Access.READ, Access.ASK, Access.INFER)


@web.middleware
async def audit(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Notes the request if it may change something, with its answer's status."""
    route = route_of(request)
    if route is None or not is_recorded(route):
        return await handler(request)
    try:
        response = await handler(request)
    except asyncio.CancelledError:
        request.app[TRAIL].note(_entry(request, route, _CUT))
        raise
    request.app[TRAIL].note(_entry(request, route, response.status))
    return response


def _entry(request: web.Request, route: Route, status: int) -> Entry:
    principal, told = request.get(PRINCIPAL), request.get(AUDITED)
    object_ = request.path.removeprefix(_API) if told is None else told.object
    actor = "" if told is None else told.actor
    return Entry(
        actor=actor if principal is None else f"key:{principal.name}",
        key_id="" if principal is None else principal.key_id,
        address=client_of(request.remote or "") if principal is None else request.remote or "",
        action=f"{route.method} {route.canonical}",
        object=_KEY_MATERIAL.sub("[redacted]", object_)[:_MOST_CHARS],
        outcome=_outcome(status),
        status=status,
        code=request.get(ERROR_CODE, "") if told is None else told.code,
        request_id=request[REQUEST_ID],
    )


def _outcome(status: int) -> Outcome:
    if status == _CUT:
        return "cut"
    return "done" if status < _REFUSED else "refused" if status < _FAILED else "failed"


def _with_left_out(entry: Entry, left_out: int) -> Entry:
    return replace(entry, left_out=left_out)


def _say(entry: Entry, why: str) -> None:
    log.error("audit entry not stored", why=why, actor=entry.actor, action=entry.action, object=entry.object,
              outcome=entry.outcome, status=entry.status, request_id=entry.request_id)  # fmt: skip
