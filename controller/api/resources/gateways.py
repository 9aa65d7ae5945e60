"""Gateways: list, forget."""

from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.responses import json_response
from controller.api.route import Access, Route
from controller.store.scaling.gateways import forget_gateway, list_gateways
from schemas.api.envelopes import Page
from schemas.api.gateways import GatewayView


async def get_all(request: web.Request) -> web.Response:
    """`GET /gateways`."""
    async with request.app[CONTEXT].database.snapshot() as connection:
        return json_response(Page[GatewayView](items=await list_gateways(connection)))


async def delete(request: web.Request) -> web.Response:
    """`DELETE /gateways/{name}`."""
    await forget_gateway(request.app[CONTEXT].database, request.match_info["name"])
    return web.Response(status=204)


_PATH: Final = "/api/v1/gateways"
ROUTES: Final = (
    Route("GET", _PATH, get_all, Access.READ, "List gateways", "gateways", Page[GatewayView]),
    Route("DELETE", _PATH + "/{name}", delete, Access.OPERATE, "Forget a gateway that is gone for good", "gateways"),
)
