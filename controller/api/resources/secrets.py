"""Secrets: set, delete. The API never returns a value."""

from typing import Final

from aiohttp import web

from controller.api.body import read_model
from controller.api.context import CONTEXT
from controller.api.parameters import new_name
from controller.api.route import Access, Route
from controller.store.access.secrets import delete_secret, put_secret
from schemas.api.requests import SecretBody


async def put(request: web.Request) -> web.Response:
    """`PUT /secrets/{name}`."""
    name = new_name(request)
    body = await read_model(request, SecretBody)
    await put_secret(request.app[CONTEXT].database, name, body.value)
    return web.Response(status=204)


async def delete(request: web.Request) -> web.Response:
    """`DELETE /secrets/{name}`."""
    await delete_secret(request.app[CONTEXT].database, request.match_info["name"])
    return web.Response(status=204)


_PATH: Final = "/api/v1/secrets/{name}"
ROUTES: Final = (
    Route("PUT", _PATH, put, Access.ADMINISTER, "Set a secret", "secrets", body=SecretBody, status=204),
    Route("DELETE", _PATH, delete, Access.ADMINISTER, "Delete a secret", "secrets", status=204),
)
