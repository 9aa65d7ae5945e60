"""The ledger: its leader, its audit and repair, and the list of problems that need an operator."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.parameters import flag, parameters_of, refuse_unknown
from controller.api.read_routes import COMPLETE_PAGING, is_paged, paged_view
from controller.api.route import Access, Query, Route
from controller.api.single_flight import SingleFlight, shared_context
from controller.decide.attention import find_attention
from controller.store.core.database import Reader
from controller.store.core.ledger_audit import audit
from controller.store.core.repair import repair
from controller.store.views.attention import newest_violation, read_attention
from controller.store.views.leader import read_leader
from schemas.api.attention import AttentionList
from schemas.api.audit import AuditView, LeaderView, RepairView
from schemas.api.view import from_json, to_json

BROKEN_S: Final = 1.0  # a repaired ledger shows within 2 s
SOUND_S: Final = 60.0
SHARE: Final = 10  # an audit that took a second counts for ten
MAX_ENTRIES: Final = 200
READ_LIMIT_S: Final = 25.0
ATTENTION: Final = web.AppKey("ATTENTION", SingleFlight[bytes])


async def get_leader(request: web.Request) -> web.Response:
    leading, _ = request.app[CONTEXT].leadership()
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await read_leader(connection, leading=leading))


async def get_audit(request: web.Request) -> web.Response:
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await audit(connection))


async def post_repair(request: web.Request) -> web.Response:
    parameters = parameters_of(request)
    refuse_unknown(parameters, "dry_run")
    return json_response(await repair(request.app[CONTEXT].database, dry_run=flag(parameters, "dry_run")))


class LedgerVerdict:
    """The violations of the last audit, while it is valid. One reader at a time.

    The leader audits on a timer and writes an event for a new violation. Only then the API audits too, so that the
    entry ends with the repair. The result is kept, because the event stays for weeks and an audit reads all claims.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._event: int | None = None  # the newest event at the last audit
        self._until = 0.0
        self._violations: Sequence[str] = ()

    async def violations(self, connection: Reader) -> Sequence[str]:
        """Texts of the violations. The connection must be in one REPEATABLE READ transaction."""
        newest = await newest_violation(connection)
        if newest is None:
            return ()
        started = self._clock()
        if newest != self._event or started >= self._until:
            self._violations = [violation.message for violation in (await audit(connection)).violations]
            self._event, now = newest, self._clock()
            self._until = now + max(BROKEN_S if self._violations else SOUND_S, SHARE * (now - started))
        return self._violations


async def get_attention(request: web.Request) -> web.Response:
    complete = await request.app[ATTENTION].get()
    if is_paged(request):
        return paged_view(request, from_json(AttentionList, complete), lambda entry: entry.id)
    return web.Response(body=complete, content_type="application/json")


async def _compute(app: web.Application, ledger: LedgerVerdict) -> bytes:
    context = app[CONTEXT]
    leading, _ = context.leadership()
    async with asyncio.timeout(READ_LIMIT_S), context.database.snapshot() as connection:
        violations = await ledger.violations(connection)
        state = await read_attention(
            connection,
            leading=leading,
            violations=violations,
            secret_keys=context.secret_keys,
            certificates=context.certificates(),
            space=context.database.space,
        )
    # In a thread, as thousands of instances may be in trouble; without a time limit, which would not end the thread.
    entries = await asyncio.to_thread(find_attention, state)
    more = max(0, len(entries) - MAX_ENTRIES)
    return to_json(AttentionList(at=state.at, items=entries[:MAX_ENTRIES], more=more))


attention_context = shared_context(ATTENTION, lambda app: partial(_compute, app, LedgerVerdict()))
ROUTES: Final = (
    Route("GET", "/api/v1/leader", get_leader, Access.READ, "Read leader and term", "ledger", LeaderView),
    Route("GET", "/api/v1/audit", get_audit, Access.READ, "Check the ledger's invariants", "ledger", AuditView),
    Route(
        "POST", "/api/v1/audit/repair", post_repair, Access.ADMINISTER,
        "Mend what breaks invariants where that can be done for certain", "ledger", RepairView,
        query=(Query("dry_run", "only say what would be changed", "boolean"),),
    ),
    Route(
        "GET", "/api/v1/attention", get_attention, Access.READ,
        "List what needs an operator, by cause and the worst first", "ledger", AttentionList, query=COMPLETE_PAGING,
        momentary=True,
    ),
)  # fmt: skip
