"""`GET /attention`: what needs an operator, the worst first."""

import asyncio
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.parameters import known_parameters
from controller.api.responses import json_response
from controller.api.route import Access, Route
from controller.decide.attention import find_attention
from controller.store.views.attention import read_attention
from schemas.api.attention import AttentionList

MAX_ENTRIES: Final = 200


async def get(request: web.Request) -> web.Response:
    """`GET /attention`."""
    known_parameters(request, "limit", "cursor")
    context = request.app[CONTEXT]
    leading, _ = context.leadership()
    async with context.database.snapshot() as connection:
        facts = await read_attention(connection, leading=leading)
    entries = await asyncio.to_thread(find_attention, facts)  # thousands of instances may be in trouble
    more = max(0, len(entries) - MAX_ENTRIES)
    return json_response(AttentionList(at=facts.at, items=entries[:MAX_ENTRIES], more=more))


ROUTES: Final = (
    Route(
        "GET", "/api/v1/attention", get, Access.READ, "List what needs an operator, by cause and the worst first",
        "ledger", AttentionList,
    ),
)  # fmt: skip
