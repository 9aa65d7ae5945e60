"""What keys used of models."""

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.errors import invalid
from controller.api.parameters import duration_s, parameters_of
from controller.api.route import Access, Query, Route
from controller.store.access.usage import DIMENSIONS, USAGE_KEPT, UsageSum, period, read_usage
from schemas.api.usage import UsageItem, UsageReport
from schemas.manifest.problems import FieldProblem

DEFAULT_SINCE_S: Final = 7 * 86_400.0
_DEFAULT_BY: Final = "key,model"


async def get(request: web.Request) -> web.Response:
    """`GET /usage`. A key for inference sees its own."""
    parameters = parameters_of(request)
    since_s = duration_s(parameters, "since", low=60, high=USAGE_KEPT.total_seconds()) or DEFAULT_SINCE_S
    by = _by(parameters)
    principal = request[PRINCIPAL]
    only = principal.key_id if principal.role == "inference" else None
    async with request.app[CONTEXT].database.snapshot() as connection:
        since, until = await period(connection, since_s)
        sums = await read_usage(connection, since, by, only_key=only)
    return json_response(UsageReport(since=since, until=until, items=[_item(one) for one in sums]))


def _by(parameters: Mapping[str, str]) -> list[str]:
    names = [name.strip() for name in parameters.get("by", _DEFAULT_BY).split(",")]
    wrong = [name for name in names if name not in DIMENSIONS]
    if wrong:
        known = ", ".join(DIMENSIONS)
        raise invalid([FieldProblem("by", f"unknown dimension {wrong[0][:40]!r}; write some of: {known}")])
    return names


def _item(one: UsageSum) -> UsageItem:
    counts = one.counts
    return UsageItem(
        key=one.key,
        key_name=one.key_name,
        model=one.model,
        endpoint=one.endpoint,
        requests=counts.requests,
        errors=counts.errors,
        prompt_tokens=counts.prompt_tokens,
        cached_tokens=counts.cached_tokens,
        completion_tokens=counts.completion_tokens,
        estimated=counts.estimated,
        in_flight_s=counts.in_flight_s,
        first_token_s=counts.first_token_s / counts.first_tokens if counts.first_tokens else None,
    )


_QUERY: Final = (
    Query("since", "start of the report as time before now, such as 7d (default) or 12h"),
    Query("by", "what to sum by: some of key, model and endpoint, with commas (default key,model)"),
)
ROUTES: Final = (
    Route(
        "GET",
        "/api/v1/usage",
        get,
        Access.ASK,
        "Usage of models by key",
        "usage",
        UsageReport,
        query=_QUERY,
        momentary=True,
    ),
)
