"""API keys: create, list, change, revoke."""

from typing import Final

from aiohttp import web

from controller.api.body import json_response, read_model
from controller.api.context import CONTEXT
from controller.api.errors import invalid
from controller.api.route import Access, Route
from controller.api.whole_lists import WHOLE_PAGING, whole_list
from controller.store.access.keys import KeyChanges, create_key, list_keys, revoke_key, rotate_key, update_key
from schemas.api.access import KeyCreated, KeyView, Role
from schemas.api.envelopes import Page
from schemas.api.requests import KeyBody, KeyLimitsBody, KeyRotationBody, KeyUpdateBody, refuse_limits
from schemas.key_limits import KeyLimits
from schemas.manifest.problems import FieldProblem


async def post(request: web.Request) -> web.Response:
    """`POST /keys`."""
    body = await read_model(request, KeyBody)
    made = await create_key(
        request.app[CONTEXT].database,
        body.role,
        name=body.name,
        limits=_limits(body),
        expires_s=body.expires_s,
    )
    return json_response(made, status=201)


async def patch(request: web.Request) -> web.Response:
    """`PATCH /keys/{id}`."""
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


async def get_all(request: web.Request) -> web.Response:
    """`GET /keys`."""
    found = Page[KeyView](items=await list_keys(request.app[CONTEXT].database))
    return whole_list(request, found, lambda key: key.id)


async def rotate(request: web.Request) -> web.Response:
    """`POST /keys/{id}/rotate`."""
    body = await read_model(request, KeyRotationBody)
    database = request.app[CONTEXT].database
    made = await rotate_key(database, request.match_info["id"], overlap_s=body.overlap_s, expires_s=body.expires_s)
    return json_response(made, status=201)


async def delete(request: web.Request) -> web.Response:
    """`DELETE /keys/{id}`."""
    return json_response(await revoke_key(request.app[CONTEXT].database, request.match_info["id"]))


_PATH: Final = "/api/v1/keys"
ROUTES: Final = (
    Route("POST", _PATH, post, Access.ADMINISTER, "Create an API key", "keys", KeyCreated, KeyBody, status=201),
    Route("GET", _PATH, get_all, Access.ADMINISTER, "List API keys", "keys", Page[KeyView], query=WHOLE_PAGING),
    Route(
        "PATCH", _PATH + "/{id}", patch, Access.ADMINISTER, "Change an API key's limits", "keys", KeyView, KeyUpdateBody
    ),
    Route(
        "POST", _PATH + "/{id}/rotate", rotate, Access.ADMINISTER,
        "Make a successor of an API key, which expires after an overlap", "keys", KeyCreated, KeyRotationBody,
        status=201,
    ),
    Route("DELETE", _PATH + "/{id}", delete, Access.ADMINISTER, "Revoke an API key", "keys", KeyView),
)  # fmt: skip
