"""Gateways: list, forget."""

from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.route import Access, Route
from controller.api.whole_lists import WHOLE_PAGING, whole_list
from controller.store.scaling.gateways import forget_gateway, list_gateways
from schemas.api.envelopes import Page
from schemas.api.gateways import GatewayView


async def get_all(request: web.Request) -> web.Response:
    """`GET /gateways`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        found = Page[GatewayView](items=await list_gateways(connection))
    return whole_list(request, found, lambda gateway: gateway.name)


async def delete(request: web.Request) -> web.Response:
    """`DELETE /gateways/{name}`."""
    await forget_gateway(request.app[CONTEXT].database, request.match_info["name"])
    return web.Response(status=204)


_PATH: Final = "/api/v1/gateways"
ROUTES: Final = (
    Route("GET", _PATH, get_all, Access.READ, "List gateways", "gateways", Page[GatewayView], query=WHOLE_PAGING),
    Route("DELETE", _PATH + "/{name}", delete, Access.OPERATE, "Forget a gateway that is gone for good", "gateways"),
)
