"""API keys, join tokens, secrets, and the public certificate of the controller's own authority."""

import asyncio
from typing import Final

import msgspec
from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT, ApiContext
from controller.api.errors import ApiError, invalid
from controller.api.parameters import check_trusted, new_name
from controller.api.read_routes import COMPLETE_PAGING, paged_view
from controller.api.route import Access, Route
from controller.store.access.audit_seals import renew_seals
from controller.store.access.keys import KeyChanges, create_key, list_keys, revoke_key, rotate_key, update_key
from controller.store.access.proxy_secrets import read_key_ids
from controller.store.access.sealing import is_sealing, read_sealing, seal_keys
from controller.store.access.secrets import delete_secret, list_secrets, put_secret, scope_secret, seal_all
from controller.store.access.tokens import TokenTerms, create_token, list_tokens, revoke_token
from schemas.api.access import KeyCreated, KeyView, Role, SecretsRotated, SecretView, TokenCreated, TokenView
from schemas.api.envelopes import Page
from schemas.api.requests import (
    KeyBody,
    KeyLimitsBody,
    KeyRotationBody,
    KeyUpdateBody,
    SecretBody,
    SecretScopeBody,
    TokenBody,
    refuse_limits,
)
from schemas.key_limits import KeyLimits
from schemas.manifest.problems import FieldProblem
from schemas.wire import CA_PATH, token_with_authority

_GATEWAYS_S: Final = 5.0
_POLL_S: Final = 0.25
_PEM: Final = "application/x-pem-file"


async def create_api_key(request: web.Request) -> web.Response:
    body = await read_model(request, KeyBody)
    made = await create_key(
        request.app[CONTEXT].database,
        body.role,
        name=body.name,
        limits=_limits(body),
        expires_s=body.expires_s,
    )
    return json_response(made, status=201)


async def change_key(request: web.Request) -> web.Response:
    body = await read_model(request, KeyUpdateBody)
    fields = body.model_fields_set - ({"name"} if body.name is None else set())
    changes = KeyChanges(frozenset(fields), body.name or "", _limits(body), body.expires_s)

    def check(role: Role) -> None:
        try:
            refuse_limits(role, body)
        except ValueError as error:
            field, _, message = str(error).partition(": ")
            raise invalid([FieldProblem(field, message)]) from error

    return json_response(
        await update_key(request.app[CONTEXT].database, request.match_info["id"], changes, check=check)
    )


def _limits(body: KeyLimitsBody) -> KeyLimits:
    return KeyLimits(tuple(body.models), body.rpm, body.tpm, body.tokens_per_day, body.parallel)


async def get_keys(request: web.Request) -> web.Response:
    keys = Page[KeyView](items=await list_keys(request.app[CONTEXT].database))
    return paged_view(request, keys, lambda key: key.id)


async def rotate_api_key(request: web.Request) -> web.Response:
    body = await read_model(request, KeyRotationBody)
    database = request.app[CONTEXT].database
    made = await rotate_key(database, request.match_info["id"], overlap_s=body.overlap_s, expires_s=body.expires_s)
    return json_response(made, status=201)


async def delete_key(request: web.Request) -> web.Response:
    return json_response(await revoke_key(request.app[CONTEXT].database, request.match_info["id"]))


_KEYS: Final = "/api/v1/keys"


async def post_token(request: web.Request) -> web.Response:
    body = await read_model(request, TokenBody, optional=True)
    context = request.app[CONTEXT]
    check_trusted(body.labels, context.trusted_labels)
    terms = TokenTerms(body.name, body.labels, body.advertise_networks)
    made = await create_token(context.database, ttl_s=body.expires_s, uses=body.uses, terms=terms)
    if context.authority is not None:
        made = msgspec.structs.replace(made, token=token_with_authority(made.token, context.authority.public_key_hash))
    return json_response(made, status=201)


async def get_tokens(request: web.Request) -> web.Response:
    tokens = Page[TokenView](items=await list_tokens(request.app[CONTEXT].database))
    return paged_view(request, tokens, lambda token: token.id)


async def delete_token(request: web.Request) -> web.Response:
    return json_response(await revoke_token(request.app[CONTEXT].database, request.match_info["id"]))


_TOKENS: Final = "/api/v1/tokens"


async def set_secret(request: web.Request) -> web.Response:
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
    await context.known_secrets.refresh()  # so that the next answer no longer shows the value
    return web.Response(status=204)


async def limit_secret(request: web.Request) -> web.Response:
    body = await read_model(request, SecretScopeBody)
    await scope_secret(
        request.app[CONTEXT].database,
        request.match_info["name"],
        deployments=body.deployments,
        admins_only=body.admins_only,
    )
    return web.Response(status=204)


async def get_secrets(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    secrets = Page[SecretView](items=await list_secrets(context.database, context.secret_keys))
    return paged_view(request, secrets, lambda secret: secret.name)


async def remove_secret(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    await delete_secret(context.database, request.match_info["name"])
    await context.known_secrets.refresh()
    return web.Response(status=204)


async def rotate_secrets_key(request: web.Request) -> web.Response:
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
    """Waits for gateways to report the new key. This host's gateways take a second; the leader seals the rest."""
    database, keys, ends = context.database, context.secret_keys, asyncio.get_running_loop().time() + _GATEWAYS_S
    while keys.current and not await seal_keys(database, keys) and await is_sealing(database):
        if asyncio.get_running_loop().time() > ends:
            break
        await asyncio.sleep(_POLL_S)


_SECRETS: Final = "/api/v1/secrets"
_SECRET: Final = _SECRETS + "/{name}"


async def get_authority(request: web.Request) -> web.Response:
    authority = request.app[CONTEXT].authority
    if authority is None:
        raise ApiError(404, "no_authority", "this controller has no certificate authority of its own")
    return web.Response(body=authority.certificate, content_type=_PEM)


ROUTES: Final = (
    Route(
        "POST", _KEYS, create_api_key, Access.ADMINISTER, "Create an API key", "keys", KeyCreated, KeyBody, status=201,
    ),
    Route("GET", _KEYS, get_keys, Access.ADMINISTER, "List API keys", "keys", Page[KeyView], query=COMPLETE_PAGING),
    Route(
        "PATCH", _KEYS + "/{id}", change_key, Access.ADMINISTER, "Change an API key's limits", "keys", KeyView,
        KeyUpdateBody,
    ),
    Route(
        "POST", _KEYS + "/{id}/rotate", rotate_api_key, Access.ADMINISTER,
        "Make a successor of an API key, which expires after an overlap", "keys", KeyCreated, KeyRotationBody,
        status=201,
    ),
    Route("DELETE", _KEYS + "/{id}", delete_key, Access.ADMINISTER, "Revoke an API key", "keys", KeyView),
    Route(
        "POST", _TOKENS, post_token, Access.ADMINISTER, "Create a join token", "tokens", TokenCreated, TokenBody,
        status=201,
    ),
    Route(
        "GET", _TOKENS, get_tokens, Access.ADMINISTER, "List join tokens", "tokens", Page[TokenView],
        query=COMPLETE_PAGING,
    ),
    Route("DELETE", _TOKENS + "/{id}", delete_token, Access.ADMINISTER, "Revoke a join token", "tokens", TokenView),
    Route(
        "GET", _SECRETS, get_secrets, Access.ADMINISTER, "List secrets, without their values", "secrets",
        Page[SecretView], query=COMPLETE_PAGING,
    ),
    Route(
        "POST", _SECRETS + "/rotate-key", rotate_secrets_key, Access.ADMINISTER,
        "Encrypt all secrets under the present key", "secrets", SecretsRotated,
    ),
    Route("PUT", _SECRET, set_secret, Access.ADMINISTER, "Set a secret", "secrets", body=SecretBody, status=204),
    Route(
        "PATCH", _SECRET, limit_secret, Access.ADMINISTER, "Change what a secret is for", "secrets",
        body=SecretScopeBody, status=204,
    ),
    Route("DELETE", _SECRET, remove_secret, Access.ADMINISTER, "Delete a secret", "secrets", status=204),
    Route(
        "GET", CA_PATH, get_authority, Access.OPEN, "Certificate of the controller's authority", "agents", media=_PEM,
    ),
)  # fmt: skip
