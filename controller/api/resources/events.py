"""Events and the audit log: list, newest first; verify."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Final, get_args

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT
from controller.api.errors import invalid
from controller.api.parameters import integer, page_limit, parameters_of, time_or_age
from controller.api.route import PAGING, Access, Query, Route
from controller.store.access.audit_log import EntryFilter, Outcome, list_entries
from controller.store.access.audit_seals import verify_page
from controller.store.core.database import Reader
from controller.store.views.events import EventFilter, list_events, objects_named
from schemas.api.audit import AuditLogEntry, AuditLogVerification
from schemas.api.envelopes import Page
from schemas.api.events import EventView
from schemas.manifest.problems import FieldProblem
from schemas.status_reasons import REASONS

_BY_NAME: Final = ("deployment", "instance", "worker", "gpu", "policy", "key")
_MOST_OBJECTS: Final = 8
_MOST_PROBLEMS: Final = 8
_KINDS: Final = ("deployment", "instance", "worker", "gpu", "policy", "key", "token", "secret")
_OUTCOMES: Final = get_args(Outcome)


async def get_events(request: web.Request) -> web.Response:
    parameters = parameters_of(request)
    async with request.app[CONTEXT].database.snapshot() as connection:
        objects = [(name, about) for name in ("object", "subject") for about in request.query.getall(name, ())]
        objects += [(kind, f"{kind}/{name}") for kind in _BY_NAME for name in request.query.getall(kind, ())]
        if len(objects) > _MOST_OBJECTS:
            raise invalid([FieldProblem(objects[0][0], f"at most {_MOST_OBJECTS} objects, got {len(objects)}")])
        wanted = EventFilter(
            about=[await _names(connection, parameter, about) for parameter, about in objects],
            reasons=_reasons(request.query.getall("reason", ())),
            since_id=integer(parameters, "since", low=0, high=2**63 - 1),
            after=time_or_age(parameters, "after"),
        )
        limit, cursor = page_limit(parameters), parameters.get("cursor")
        page = await list_events(connection, limit=limit, cursor=cursor, wanted=wanted)
    return json_response(page)


def _reasons(given: Iterable[str]) -> list[str]:
    """The requested reason codes. Unknown codes are refused, since they would silently match nothing."""
    reasons = [reason for text in ",".join(given).split(",") if (reason := text.strip())]
    known = [code for texts in REASONS.values() for code in texts]
    if unknown := [reason for reason in dict.fromkeys(reasons) if reason not in known]:
        raise invalid([FieldProblem("reason", _unknown(reason[:80], known)) for reason in unknown[:_MOST_PROBLEMS]])
    return reasons


def _unknown(reason: str, known: Sequence[str]) -> str:
    close = get_close_matches(reason.lower(), known, n=1, cutoff=0.5)
    advice = f"did you mean {close[0]!r}?" if close else "the page 'Reason codes' of the documentation lists them"
    return f"unknown reason code {reason!r}; {advice}"


async def _names(connection: Reader, parameter: str, about: str) -> list[str]:
    """The names by which events refer to the object of a parameter."""
    kind, mark, name = about.replace("/", ":", 1).partition(":")
    if not mark or not name or kind not in _KINDS:
        forms = ", ".join(f"{known}:ID" for known in _KINDS)
        raise invalid([FieldProblem(parameter, f"must be one of {forms}, or KIND/NAME, got {about[:80]!r}")])
    return await objects_named(connection, kind, name) if "/" in about else [about]


_OBJECT: Final = f"only of this object: KIND:UID or KIND/NAME, the kind one of {', '.join(_KINDS)}"
_FILTERS: Final = (
    Query("object", f"{_OBJECT}; several: only of all of them at once", many=True),
    Query("subject", "the same as `object`", many=True),
    *(Query(kind, f"only of the {kind} of this name, also once it is gone", many=True) for kind in _BY_NAME),
    Query("reason", "only these reason codes, comma-separated or several times", many=True),
    Query("after", "only events after this moment, such as 2026-11-23T14:05:00Z, or after that long ago, such as 10m"),
    Query("since", "only events after the one with this id", "integer"),
)


async def get_audit_log(request: web.Request) -> web.Response:
    parameters = parameters_of(request)
    outcome = parameters.get("outcome")
    if outcome is not None and outcome not in _OUTCOMES:
        raise invalid([FieldProblem("outcome", f"must be one of {', '.join(_OUTCOMES)}, got {outcome[:80]!r}")])
    wanted = EntryFilter(
        parameters.get("actor"),
        parameters.get("object"),
        time_or_age(parameters, "after"),
        time_or_age(parameters, "before"),
        outcome,
    )
    limit, cursor = page_limit(parameters), parameters.get("cursor")
    async with request.app[CONTEXT].database.connection() as connection:
        return json_response(await list_entries(connection, limit=limit, cursor=cursor, wanted=wanted))


async def verify_audit_log(request: web.Request) -> web.Response:
    context, cursor = request.app[CONTEXT], parameters_of(request).get("cursor")
    async with context.database.snapshot() as connection:
        return json_response(await verify_page(connection, context.secret_keys, cursor))


_LOG_FILTERS: Final = (
    Query("actor", "only of this key or agent: its name, or `key:NAME`, `agent:NAME`"),
    Query("object", "only of this object and what is below it, such as `deployments/chat`"),
    Query("after", "only after this moment, such as 2026-11-23T14:05:00Z, or after that long ago, such as 10m"),
    Query("before", "only before this moment, likewise"),
    Query("outcome", f"only with this outcome: {', '.join(_OUTCOMES)}"),
)


ROUTES: Final = (
    Route(
        "GET", "/api/v1/events", get_events, Access.READ, "List events, newest first", "events", Page[EventView],
        query=(*PAGING, *_FILTERS),
    ),
    Route(
        "GET", "/api/v1/audit-log", get_audit_log, Access.ADMINISTER,
        "List changes, and reads of secrets and logs, newest first", "audit log",
        Page[AuditLogEntry], query=(*PAGING, *_LOG_FILTERS),
    ),
    Route(
        "GET", "/api/v1/audit-log/verify", verify_audit_log, Access.ADMINISTER,
        "Verify a part of the audit log against its seals, oldest first", "audit log", AuditLogVerification,
        query=(Query("cursor", "`next` of the previous page"),),
    ),
)  # fmt: skip
