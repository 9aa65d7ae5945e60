"""Health: whether this process is alive (/healthz), and whether it can do its work (/readyz)."""

import asyncio
from typing import Final

from aiohttp import web

from controller.api.body import json_response
from controller.api.context import CONTEXT, Check
from controller.api.errors import ApiError
from controller.api.middlewares import caller_of
from controller.api.route import Access, Query, Route
from controller.live.errors import UnknownWhileAwayError
from http1.forwarded import is_from_this_host
from schemas.api.view import View

MAX_LOOP_LAG_S: Final = 5.0
_CHECKS_LIMIT_S: Final = 5.0


class HealthView(View, frozen=True, kw_only=True):
    """`ok` or `lagging`, and the event loop's lag in seconds."""

    status: str
    loop_lag_s: float


class CheckView(View, frozen=True, kw_only=True):
    """One readiness check."""

    ok: bool
    message: str = ""  # empty for a stranger


class ReadyView(View, frozen=True, kw_only=True):
    """All readiness checks."""

    ready: bool
    checks: dict[str, CheckView]


async def healthz(request: web.Request) -> web.Response:
    lag_s = request.app[CONTEXT].loop_lag()
    ok = lag_s <= MAX_LOOP_LAG_S
    view = HealthView(status="ok" if ok else "lagging", loop_lag_s=round(lag_s, 3))
    return json_response(view, status=200 if ok else 503)


async def readyz(request: web.Request) -> web.Response:
    """Checks named in `exclude`, separated by commas, do not count, but their results are shown.

    No key is needed. Messages contain addresses, versions and errors, so only this host and keys with access to all
    reads get them.
    """
    excluded = set(request.query.get("exclude", "").split(","))
    try:
        async with asyncio.timeout(_CHECKS_LIMIT_S):
            checks = dict(await request.app[CONTEXT].readiness())
    except TimeoutError:
        checks = {"checks": Check(ok=False, message=f"no result within {_CHECKS_LIMIT_S:g} s")}
    ready = all(check.ok for name, check in checks.items() if name not in excluded)
    full = await _may_read_messages(request)
    shown = {name: CheckView(ok=check.ok, message=check.message if full else "") for name, check in checks.items()}
    return json_response(ReadyView(ready=ready, checks=shown), status=200 if ready else 503)


async def _may_read_messages(request: web.Request) -> bool:
    """Whether the request is from this host, by loopback or the controller's socket, or has a key that may read.

    A request that a gateway passes on names its client; the gateway's own requests name none.
    """
    if request.app[CONTEXT].from_gateway(request):
        near = not request.headers.get("X-Forwarded-For")
    else:
        near = is_from_this_host(request.remote or "", request.headers)
    if near:
        return True
    try:
        caller = await caller_of(request)
    except (ApiError, UnknownWhileAwayError):  # while the database is away, keys that are not in memory are unknown
        return False
    return caller is not None and caller.role in Access.READ.value


ROUTES: Final = (
    Route("GET", "/healthz", healthz, Access.OPEN, "Whether this process is alive", "health", HealthView),
    Route(
        "GET", "/readyz", readyz, Access.OPEN, "Whether this process can do its work", "health", ReadyView,
        query=(Query("exclude", "names of checks that do not count, separated by commas, such as `ledger`"),),
    ),
)  # fmt: skip
