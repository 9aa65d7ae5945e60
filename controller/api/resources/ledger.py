"""The ledger as a whole: whether its invariants hold, and who leads."""

from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.exchange import answer
from controller.api.route import Access, Route
from controller.store.core.audit import audit
from controller.store.views.leader import read_leader
from schemas.api.audit import AuditView
from schemas.api.leader import LeaderView


async def get_audit(request: web.Request) -> web.Response:
    """`GET /audit`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        return answer(await audit(connection))


async def get_leader(request: web.Request) -> web.Response:
    """`GET /leader`."""
    leading, _ = request.app[CONTEXT].leadership()
    async with request.app[CONTEXT].database.snapshot() as connection:
        return answer(await read_leader(connection, leading=leading))


ROUTES: Final = (
    Route("GET", "/api/v1/audit", get_audit, Access.READ, "Check the invariants", "ledger", AuditView),
    Route("GET", "/api/v1/leader", get_leader, Access.READ, "Who leads", "ledger", LeaderView),
)
