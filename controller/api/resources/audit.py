"""The audit: whether the ledger's invariants hold."""

from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.responses import json_response
from controller.api.route import Access, Route
from controller.store.core.audit import audit
from schemas.api.audit import AuditView


async def get(request: web.Request) -> web.Response:
    """`GET /audit`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await audit(connection))


ROUTES: Final = (Route("GET", "/api/v1/audit", get, Access.READ, "Check the ledger's invariants", "ledger", AuditView),)
