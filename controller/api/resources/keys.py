"""API keys: create, list, revoke."""

from typing import Final

from aiohttp import web

from controller.api.body import read_model
from controller.api.context import CONTEXT
from controller.api.responses import json_response
from controller.api.route import Access, Route
from controller.store.access.keys import create_key, list_keys, revoke_key
from schemas.api.access import KeyCreated, KeyView
from schemas.api.envelopes import Page
from schemas.api.requests import KeyBody


async def post(request: web.Request) -> web.Response:
    """`POST /keys`."""
    body = await read_model(request, KeyBody)
    return json_response(await create_key(request.app[CONTEXT].database, body.role, name=body.name), status=201)


async def get_all(request: web.Request) -> web.Response:
    """`GET /keys`."""
    return json_response(Page[KeyView](items=await list_keys(request.app[CONTEXT].database)))


async def delete(request: web.Request) -> web.Response:
    """`DELETE /keys/{id}`."""
    return json_response(await revoke_key(request.app[CONTEXT].database, request.match_info["id"]))


_PATH: Final = "/api/v1/keys"
ROUTES: Final = (
    Route("POST", _PATH, post, Access.ADMINISTER, "Create an API key", "keys", KeyCreated, KeyBody, status=201),
    Route("GET", _PATH, get_all, Access.ADMINISTER, "List API keys", "keys", Page[KeyView]),
    Route("DELETE", _PATH + "/{id}", delete, Access.ADMINISTER, "Revoke an API key", "keys", KeyView),
)
