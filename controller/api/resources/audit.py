"""The audit: whether the ledger's invariants hold, and the repair of what can be mended without guessing."""

from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.parameters import flag, parameters_of, refuse_unknown
from controller.api.route import Access, Query, Route
from controller.store.core.audit import audit
from controller.store.core.repair import repair
from schemas.api.audit import AuditView, RepairView


async def get(request: web.Request) -> web.Response:
    """`GET /audit`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(await audit(connection))


async def post_repair(request: web.Request) -> web.Response:
    """`POST /audit/repair`."""
    parameters = parameters_of(request)
    refuse_unknown(parameters, "dry_run")
    return json_response(await repair(request.app[CONTEXT].database, dry_run=flag(parameters, "dry_run")))


ROUTES: Final = (
    Route("GET", "/api/v1/audit", get, Access.READ, "Check the ledger's invariants", "ledger", AuditView),
    Route(
        "POST", "/api/v1/audit/repair", post_repair, Access.ADMINISTER,
        "Mend what breaks invariants where that can be done for certain", "ledger", RepairView,
        query=(Query("dry_run", "only say what would be changed", "boolean"),),
    ),
)  # fmt: skip
