"""Usage of models by key, reported by the gateways; and the gateways: list, forget."""

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import invalid
from controller.api.parameters import duration_s, parameters_of
from controller.api.read_routes import COMPLETE_PAGING, paged_view
from controller.api.route import Access, Query, Route
from controller.store.access.usage import DIMENSIONS, USAGE_KEPT, period, read_usage
from controller.store.scaling.gateways import forget_gateway, list_gateways
from schemas.api.envelopes import Page
from schemas.api.usage import GatewayView, UsageReport
from schemas.manifest.problems import FieldProblem

DEFAULT_SINCE_S: Final = 7 * 86_400.0
_DEFAULT_BY: Final = "key,model"


async def get_usage(request: web.Request) -> web.Response:
    """A key for inference reads its own usage."""
    parameters = parameters_of(request)
    since_s = duration_s(parameters, "since", low=60, high=USAGE_KEPT.total_seconds()) or DEFAULT_SINCE_S
    by = _by(parameters)
    principal = request[PRINCIPAL]
    only = principal.key_id if principal.role == "inference" else None
    async with request.app[CONTEXT].database.snapshot() as connection:
        since, until = await period(connection, since_s)
        items = await read_usage(connection, since, by, only_key=only)
    return json_response(UsageReport(since=since, until=until, items=items))


def _by(parameters: Mapping[str, str]) -> list[str]:
    names = [name.strip() for name in parameters.get("by", _DEFAULT_BY).split(",")]
    wrong = [name for name in names if name not in DIMENSIONS]
    if wrong:
        known = ", ".join(DIMENSIONS)
        raise invalid([FieldProblem("by", f"unknown dimension {wrong[0][:40]!r}; write some of: {known}")])
    return names


_QUERY: Final = (
    Query("since", "start of the report as time before now, such as 7d (default) or 12h"),
    Query("by", "what to sum by: some of key, model and endpoint, with commas (default key,model)"),
)


async def get_gateways(request: web.Request) -> web.Response:
    async with request.app[CONTEXT].database.snapshot() as connection:
        gateways = Page[GatewayView](items=await list_gateways(connection))
    return paged_view(request, gateways, lambda gateway: gateway.name)


async def forget(request: web.Request) -> web.Response:
    await forget_gateway(request.app[CONTEXT].database, request.match_info["name"])
    return web.Response(status=204)


_GATEWAYS: Final = "/api/v1/gateways"


ROUTES: Final = (
    Route(
        "GET", "/api/v1/usage", get_usage, Access.ASK, "Usage of models by key", "usage", UsageReport, query=_QUERY,
        momentary=True,
    ),
    Route(
        "GET", _GATEWAYS, get_gateways, Access.READ, "List gateways", "gateways", Page[GatewayView],
        query=COMPLETE_PAGING,
    ),
    Route(
        "DELETE", _GATEWAYS + "/{name}", forget, Access.OPERATE, "Forget a gateway that is gone for good", "gateways",
    ),
)  # fmt: skip
