"""API keys, join tokens and secrets: the administrator's."""

import re
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT
from controller.api.errors import invalid
from controller.api.exchange import answer, read_model
from controller.api.route import Access, Route
from controller.store.access.keys import create_key, list_keys, revoke_key
from controller.store.access.secrets import delete_secret, put_secret
from controller.store.access.tokens import create_token, list_tokens, revoke_token
from schemas.api.access import KeyCreated, KeyView, TokenCreated, TokenView
from schemas.api.envelopes import Page
from schemas.api.requests import KeyBody, SecretBody, TokenBody
from schemas.fields import NAME_PATTERN
from schemas.manifest.problems import FieldProblem


async def post_key(request: web.Request) -> web.Response:
    """`POST /keys`."""
    body = await read_model(request, KeyBody)
    return answer(await create_key(request.app[CONTEXT].database, body.role, name=body.name), status=201)


async def get_keys(request: web.Request) -> web.Response:
    """`GET /keys`."""
    return answer(Page[KeyView](items=await list_keys(request.app[CONTEXT].database)))


async def delete_key(request: web.Request) -> web.Response:
    """`DELETE /keys/{id}`."""
    return answer(await revoke_key(request.app[CONTEXT].database, request.match_info["id"]))


async def post_token(request: web.Request) -> web.Response:
    """`POST /tokens`."""
    body = await read_model(request, TokenBody, optional=True)
    return answer(await create_token(request.app[CONTEXT].database, ttl_s=body.expires_s), status=201)


async def get_tokens(request: web.Request) -> web.Response:
    """`GET /tokens`."""
    return answer(Page[TokenView](items=await list_tokens(request.app[CONTEXT].database)))


async def delete_token(request: web.Request) -> web.Response:
    """`DELETE /tokens/{id}`."""
    return answer(await revoke_token(request.app[CONTEXT].database, request.match_info["id"]))


async def put_one_secret(request: web.Request) -> web.Response:
    """`PUT /secrets/{name}`."""
    name = request.match_info["name"]
    if not re.fullmatch(NAME_PATTERN, name):
        raise invalid(
            [FieldProblem("name", "is not a valid name of a secret; write lower case letters, digits and '-'")]
        )
    body = await read_model(request, SecretBody)
    await put_secret(request.app[CONTEXT].database, name, body.value)
    return web.Response(status=204)


async def delete_one_secret(request: web.Request) -> web.Response:
    """`DELETE /secrets/{name}`."""
    await delete_secret(request.app[CONTEXT].database, request.match_info["name"])
    return web.Response(status=204)


_ADMIN: Final = Access.ADMINISTER
_KEYS: Final = "/api/v1/keys"
_TOKENS: Final = "/api/v1/tokens"
_SECRET: Final = "/api/v1/secrets/{name}"  # noqa: S105 - a path
ROUTES: Final = (
    Route("POST", _KEYS, post_key, _ADMIN, "Make an API key", "keys", KeyCreated, KeyBody, status=201),
    Route("GET", _KEYS, get_keys, _ADMIN, "List API keys", "keys", Page[KeyView]),
    Route("DELETE", _KEYS + "/{id}", delete_key, _ADMIN, "Revoke an API key", "keys", KeyView),
    Route("POST", _TOKENS, post_token, _ADMIN, "Make a join token", "tokens", TokenCreated, TokenBody, status=201),
    Route("GET", _TOKENS, get_tokens, _ADMIN, "List join tokens", "tokens", Page[TokenView]),
    Route("DELETE", _TOKENS + "/{id}", delete_token, _ADMIN, "Revoke a join token", "tokens", TokenView),
    Route("PUT", _SECRET, put_one_secret, _ADMIN, "Store a secret", "secrets", body=SecretBody, status=204),
    Route("DELETE", _SECRET, delete_one_secret, _ADMIN, "Remove a secret", "secrets", status=204),
)
