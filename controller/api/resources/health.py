"""Whether this process lives (/healthz), whether it can do its work (/readyz), and what it counts (/metrics)."""

import asyncio
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from controller.api.context import CONTEXT, Check
from controller.api.exchange import answer
from controller.api.resources.metrics import figures_text
from controller.api.route import Access, Route
from controller.store.views.metrics import read_figures
from schemas.base import View

MAX_LOOP_LAG_S: Final = 5.0
_CHECKS_LIMIT_S: Final = 5.0


class HealthView(View):
    """`ok` or `lagging`; by how much the event loop is late."""

    status: str
    loop_lag_s: float


class CheckView(View):
    """One part of being ready."""

    ok: bool
    message: str = ""


class ReadyView(View):
    """Every part of being ready."""

    ready: bool
    checks: dict[str, CheckView]


async def healthz(request: web.Request) -> web.Response:
    """`GET /healthz`."""
    lag_s = request.app[CONTEXT].loop_lag()
    well = lag_s <= MAX_LOOP_LAG_S
    view = HealthView(status="ok" if well else "lagging", loop_lag_s=round(lag_s, 3))
    return answer(view, status=200 if well else 503)


async def readyz(request: web.Request) -> web.Response:
    """`GET /readyz`."""
    try:
        async with asyncio.timeout(_CHECKS_LIMIT_S):
            checks = dict(await request.app[CONTEXT].readiness())
    except TimeoutError:
        checks = {"checks": Check(ok=False, message=f"gave no answer within {_CHECKS_LIMIT_S:g} s")}
    ready = all(check.ok for check in checks.values())
    view = ReadyView(
        ready=ready, checks={name: CheckView(ok=check.ok, message=check.message) for name, check in checks.items()}
    )
    return answer(view, status=200 if ready else 503)


async def metrics(request: web.Request) -> web.Response:
    """`GET /metrics`."""
    context = request.app[CONTEXT]
    async with context.database.snapshot() as connection:
        figures = await read_figures(connection)
    leading, _ = context.leadership()
    text = generate_latest(context.registry) + figures_text(figures, leading=leading, version=context.version)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


ROUTES: Final = (
    Route("GET", "/healthz", healthz, Access.OPEN, "Whether this process lives", "health", HealthView),
    Route("GET", "/readyz", readyz, Access.OPEN, "Whether it can do its work", "health", ReadyView),
    Route("GET", "/metrics", metrics, Access.READ, "Prometheus metrics", "health", media="text/plain"),
)
