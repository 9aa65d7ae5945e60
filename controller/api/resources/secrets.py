"""Secrets: set, list, limit, delete, encrypt anew. The API never returns a value."""

import asyncio
from typing import Final

from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT, ApiContext
from controller.api.parameters import new_name
from controller.api.route import Access, Route
from controller.api.whole_lists import WHOLE_PAGING, whole_list
from controller.store.access.audit_seals import renew_seals
from controller.store.access.proxy_secrets import read_key_ids
from controller.store.access.sealing import is_sealing, read_sealing, seal_keys
from controller.store.access.secrets import delete_secret, list_secrets, put_secret, scope_secret, seal_all
from schemas.api.access import SecretsRotated, SecretView
from schemas.api.envelopes import Page
from schemas.api.requests import SecretBody, SecretScopeBody

_GATEWAYS_S: Final = 5.0
_POLL_S: Final = 0.25


async def put(request: web.Request) -> web.Response:
    """`PUT /secrets/{name}`."""
    name = new_name(request)
    body = await read_model(request, SecretBody)
    context = request.app[CONTEXT]
    await put_secret(
        context.database,
        name,
        body.value,
        context.secret_keys,
        deployments=body.deployments,
        admins_only=body.admins_only,
        plain=body.plain,
    )
    await context.known_secrets.refresh()  # so that the next answer shows the value no more
    return web.Response(status=204)


async def patch(request: web.Request) -> web.Response:
    """`PATCH /secrets/{name}`."""
    body = await read_model(request, SecretScopeBody)
    await scope_secret(
        request.app[CONTEXT].database,
        request.match_info["name"],
        deployments=body.deployments,
        admins_only=body.admins_only,
    )
    return web.Response(status=204)


async def get_all(request: web.Request) -> web.Response:
    """`GET /secrets`."""
    context = request.app[CONTEXT]
    found = Page[SecretView](items=await list_secrets(context.database, context.secret_keys))
    return whole_list(request, found, lambda secret: secret.name)


async def delete(request: web.Request) -> web.Response:
    """`DELETE /secrets/{name}`."""
    context = request.app[CONTEXT]
    await delete_secret(context.database, request.match_info["name"])
    await context.known_secrets.refresh()
    return web.Response(status=204)


async def rotate(request: web.Request) -> web.Response:
    """`POST /secrets/rotate-key`."""
    context = request.app[CONTEXT]
    await asyncio.to_thread(context.renew_secrets_key)
    await renew_seals(context.database, context.secret_keys)
    encrypted, unreadable = await seal_all(context.database, context.secret_keys)
    await _seal_keys(context)
    async with context.database.connection() as connection:
        in_use = await read_key_ids(connection)
        sealing = await read_sealing(connection, context.secret_keys)
    if not unreadable:
        await asyncio.to_thread(context.drop_old_secrets_keys, in_use)
    key_id, waiting_for = context.secret_keys.current, sorted({*sealing.waits_for, *sealing.locked_out})
    return json_response(
        SecretsRotated(encrypted=encrypted, key_id=key_id, unreadable=unreadable, waiting_for=waiting_for)
    )


async def _seal_keys(context: ApiContext) -> None:
    """Waits for gateways to report the new key, which takes those of this host a second; the leader seals the rest."""
    database, keys, ends = context.database, context.secret_keys, asyncio.get_running_loop().time() + _GATEWAYS_S
    while keys.current and not await seal_keys(database, keys) and await is_sealing(database):
        if asyncio.get_running_loop().time() > ends:
            break
        await asyncio.sleep(_POLL_S)


_PATH: Final = "/api/v1/secrets"
_ONE: Final = _PATH + "/{name}"
ROUTES: Final = (
    Route(
        "GET", _PATH, get_all, Access.ADMINISTER, "List secrets, without their values", "secrets", Page[SecretView],
        query=WHOLE_PAGING,
    ),
    Route(
        "POST", _PATH + "/rotate-key", rotate, Access.ADMINISTER, "Encrypt all secrets under the present key",
        "secrets", SecretsRotated,
    ),
    Route("PUT", _ONE, put, Access.ADMINISTER, "Set a secret", "secrets", body=SecretBody, status=204),
    Route(
        "PATCH", _ONE, patch, Access.ADMINISTER, "Change what a secret is for", "secrets", body=SecretScopeBody,
        status=204,
    ),
    Route("DELETE", _ONE, delete, Access.ADMINISTER, "Delete a secret", "secrets", status=204),
)  # fmt: skip
