"""`GET /attention`: what needs an operator, the worst first."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.ledger_verdict import LedgerVerdict
from controller.api.route import Access, Route
from controller.api.single_flight import SingleFlight
from controller.api.whole_lists import WHOLE_PAGING, is_paged, whole_list
from controller.decide.attention import find_attention
from controller.store.views.attention import read_attention
from schemas.api.attention import AttentionList
from schemas.api.view import from_json, to_json

MAX_ENTRIES: Final = 200
READ_LIMIT_S: Final = 25.0
ATTENTION: Final = web.AppKey("ATTENTION", SingleFlight[bytes])


async def attention_context(app: web.Application) -> AsyncIterator[None]:
    """Holds what answers all that ask at once with one look, and ends it with the app."""
    shared = app[ATTENTION] = SingleFlight(partial(_look, app, LedgerVerdict()))
    try:
        yield
    finally:
        await shared.close()


async def get(request: web.Request) -> web.Response:
    """`GET /attention`."""
    whole = await request.app[ATTENTION].get()
    if is_paged(request):
        return whole_list(request, from_json(AttentionList, whole), lambda entry: entry.id)
    return web.Response(body=whole, content_type="application/json")


async def _look(app: web.Application, ledger: LedgerVerdict) -> bytes:
    context = app[CONTEXT]
    leading, _ = context.leadership()
    async with asyncio.timeout(READ_LIMIT_S), context.database.snapshot() as connection:
        violations = await ledger.violations(connection)
        facts = await read_attention(
            connection,
            leading=leading,
            violations=violations,
            secret_keys=context.secret_keys,
            certificates=context.certificates(),
            space=context.database.space,
        )
    # Thousands of instances may be in trouble. Without a limit, which would not end the thread.
    entries = await asyncio.to_thread(find_attention, facts)
    more = max(0, len(entries) - MAX_ENTRIES)
    return to_json(AttentionList(at=facts.at, items=entries[:MAX_ENTRIES], more=more))


ROUTES: Final = (
    Route(
        "GET", "/api/v1/attention", get, Access.READ, "List what needs an operator, by cause and the worst first",
        "ledger", AttentionList, query=WHOLE_PAGING, momentary=True,
    ),
)  # fmt: skip
