"""The audit log: list, newest first; verify."""

from typing import Final, get_args

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.errors import invalid
from controller.api.parameters import moment, page_limit, parameters_of
from controller.api.route import PAGING, Access, Query, Route
from controller.store.access.audit_log import EntryFilter, Outcome, list_entries
from controller.store.access.audit_verify import verify_page
from schemas.api.audit_log import AuditLogEntry, AuditLogVerification
from schemas.api.envelopes import Page
from schemas.manifest.problems import FieldProblem

_OUTCOMES: Final = get_args(Outcome)


async def get_all(request: web.Request) -> web.Response:
    """`GET /audit-log`."""
    parameters = parameters_of(request)
    outcome = parameters.get("outcome")
    if outcome is not None and outcome not in _OUTCOMES:
        raise invalid([FieldProblem("outcome", f"must be one of {', '.join(_OUTCOMES)}, got {outcome[:80]!r}")])
    wanted = EntryFilter(
        parameters.get("actor"),
        parameters.get("object"),
        moment(parameters, "after"),
        moment(parameters, "before"),
        outcome,
    )
    limit, cursor = page_limit(parameters), parameters.get("cursor")
    async with request.app[CONTEXT].database.connection() as connection:
        return json_response(await list_entries(connection, limit=limit, cursor=cursor, wanted=wanted))


async def get_verify(request: web.Request) -> web.Response:
    """`GET /audit-log/verify`."""
    context, cursor = request.app[CONTEXT], parameters_of(request).get("cursor")
    async with context.database.snapshot() as connection:
        return json_response(await verify_page(connection, context.secret_keys, cursor))


_FILTERS: Final = (
    Query("actor", "only of this key or agent: its name, or `key:NAME`, `agent:NAME`"),
    Query("object", "only of this object and what is below it, such as `deployments/chat`"),
    Query("after", "only after this moment, such as 2026-11-23T14:05:00Z, or after that long ago, such as 10m"),
    Query("before", "only before this moment, likewise"),
    Query("outcome", f"only with this outcome: {', '.join(_OUTCOMES)}"),
)
ROUTES: Final = (
    Route(
        "GET", "/api/v1/audit-log", get_all, Access.ADMINISTER,
        "List changes, and reads of secrets and logs, newest first", "audit log",
        Page[AuditLogEntry], query=(*PAGING, *_FILTERS),
    ),
    Route(
        "GET", "/api/v1/audit-log/verify", get_verify, Access.ADMINISTER,
        "Verify a part of the audit log against its seals, oldest first", "audit log", AuditLogVerification,
        query=(Query("cursor", "`next` of the previous page"),),
    ),
)  # fmt: skip
