"""Health: whether this process is alive (/healthz), and whether it can do its work (/readyz)."""

import asyncio
from typing import Final

from aiohttp import web

from controller.api.context import CONTEXT, Check
from controller.api.responses import json_response
from controller.api.route import Access, Query, Route
from schemas.base import View

MAX_LOOP_LAG_S: Final = 5.0
_CHECKS_LIMIT_S: Final = 5.0


class HealthView(View):
    """`ok` or `lagging`, and the event loop's lag in seconds."""

    status: str
    loop_lag_s: float


class CheckView(View):
    """One readiness check."""

    ok: bool
    message: str = ""


class ReadyView(View):
    """All readiness checks."""

    ready: bool
    checks: dict[str, CheckView]


async def healthz(request: web.Request) -> web.Response:
    """`GET /healthz`."""
    lag_s = request.app[CONTEXT].loop_lag()
    ok = lag_s <= MAX_LOOP_LAG_S
    view = HealthView(status="ok" if ok else "lagging", loop_lag_s=round(lag_s, 3))
    return json_response(view, status=200 if ok else 503)


async def readyz(request: web.Request) -> web.Response:
    """`GET /readyz`. Checks that `exclude` names, separated by commas, count for nothing; their results are shown."""
    excluded = set(request.query.get("exclude", "").split(","))
    try:
        async with asyncio.timeout(_CHECKS_LIMIT_S):
            checks = dict(await request.app[CONTEXT].readiness())
    except TimeoutError:
        checks = {"checks": Check(ok=False, message=f"no result within {_CHECKS_LIMIT_S:g} s")}
    ready = all(check.ok for name, check in checks.items() if name not in excluded)
    view = ReadyView(
        ready=ready, checks={name: CheckView(ok=check.ok, message=check.message) for name, check in checks.items()}
    )
    return json_response(view, status=200 if ready else 503)


ROUTES: Final = (
    Route("GET", "/healthz", healthz, Access.OPEN, "Whether this process is alive", "health", HealthView),
    Route(
        "GET", "/readyz", readyz, Access.OPEN, "Whether this process can do its work", "health", ReadyView,
        query=(Query("exclude", "names of checks that do not count, separated by commas, such as `ledger`"),),
    ),
)  # fmt: skip
