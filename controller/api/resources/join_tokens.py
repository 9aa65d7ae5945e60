"""Join tokens: create, list, revoke."""

from typing import Final

import msgspec
from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT
from controller.api.parameters import check_trusted
from controller.api.route import Access, Route
from controller.api.whole_lists import WHOLE_PAGING, whole_list
from controller.store.access.tokens import TokenTerms, create_token, list_tokens, revoke_token
from schemas.api.access import TokenCreated, TokenView
from schemas.api.envelopes import Page
from schemas.api.requests import TokenBody
from schemas.wire import token_with_authority


async def post(request: web.Request) -> web.Response:
    """`POST /tokens`."""
    body = await read_model(request, TokenBody, optional=True)
    context = request.app[CONTEXT]
    check_trusted(body.labels, context.trusted_labels)
    terms = TokenTerms(body.name, body.labels, body.advertise_networks)
    made = await create_token(context.database, ttl_s=body.expires_s, uses=body.uses, terms=terms)
    if context.authority is not None:
        made = msgspec.structs.replace(made, token=token_with_authority(made.token, context.authority.public_key_hash))
    return json_response(made, status=201)


async def get_all(request: web.Request) -> web.Response:
    """`GET /tokens`."""
    found = Page[TokenView](items=await list_tokens(request.app[CONTEXT].database))
    return whole_list(request, found, lambda token: token.id)


async def delete(request: web.Request) -> web.Response:
    """`DELETE /tokens/{id}`."""
    return json_response(await revoke_token(request.app[CONTEXT].database, request.match_info["id"]))


_PATH: Final = "/api/v1/tokens"
ROUTES: Final = (
    Route("POST", _PATH, post, Access.ADMINISTER, "Create a join token", "tokens", TokenCreated, TokenBody, status=201),
    Route("GET", _PATH, get_all, Access.ADMINISTER, "List join tokens", "tokens", Page[TokenView], query=WHOLE_PAGING),
    Route("DELETE", _PATH + "/{id}", delete, Access.ADMINISTER, "Revoke a join token", "tokens", TokenView),
)
