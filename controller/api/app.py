"""Builds the HTTP application: one table of all routes with their access, behind the same middlewares."""

from collections.abc import AsyncIterator, Iterable, Sequence
from functools import cache
from typing import Final

from aiohttp import web

from controller.api import apply, dashboard, middlewares
from controller.api.agent_proxies import agent_proxies_context
from controller.api.audit_trail import audit, audit_context
from controller.api.body import MAX_BODY_BYTES, represent, representation_context
from controller.api.context import CONTEXT, KEYS, ApiContext
from controller.api.dry_run import catalog, defrag, drain, explain, pending, plan
from controller.api.dry_run.allowances import dry_runs_context
from controller.api.dry_run.kept_inventory import KEPT_INVENTORY, KeptInventory
from controller.api.live_socket import handler as live_socket
from controller.api.live_socket.topics import feeds_context
from controller.api.openapi import openapi_route
from controller.api.resources import (
    access,
    deployments,
    events,
    health,
    idle_report,
    ledger,
    logs,
    metrics,
    policies,
    session,
    usage,
    watch,
    workers,
)
from controller.api.route import Access, Route
from controller.api.streams import STREAMS, Streams
from controller.live.key_ring import KeyRing
from controller.runtime.tries import Tries
from controller.store.deployments.creations import Creations
from http1.daemon.log_limit import LogLimit
from schemas.api.models import (
    FORM_PATHS,
    MODEL_PATH,
    MODEL_PATHS,
    MODEL_SUMMARY,
    MODELS_PATH,
    MODELS_SUMMARY,
    ModelList,
    ModelView,
)
from schemas.wire import CONNECT_PATH, JOIN_PATH

# Agents send a join token or their own credential there, and those handlers check it.
_SELF_AUTHENTICATING: Final = frozenset({("POST", JOIN_PATH), ("GET", CONNECT_PATH)})


class RouteWithoutAccessError(Exception):
    """A route without a stated access. This is a defect; it is raised at start."""


@cache  # the document at its end takes 30 ms of CPU
def all_routes(version: str) -> Sequence[Route]:
    """The table of all routes, with the one that describes them."""
    tables: Sequence[Sequence[Route]] = (
        deployments.ROUTES,
        plan.ROUTES,
        apply.ROUTES,
        defrag.ROUTES,
        drain.ROUTES,
        explain.ROUTES,
        pending.ROUTES,
        catalog.ROUTES,
        logs.ROUTES,
        workers.ROUTES,
        policies.ROUTES,
        idle_report.ROUTES,
        events.ROUTES,
        ledger.ROUTES,
        watch.ROUTES,
        live_socket.ROUTES,
        access.ROUTES,
        session.ROUTES,
        usage.ROUTES,
        health.ROUTES,
        metrics.ROUTES,
        dashboard.ROUTES,
    )
    routes = [route for table in tables for route in table]
    return (*routes, openapi_route([*routes, *_MODEL_ROUTES], version))


async def _elsewhere(request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound(reason=f"{request.path} is the gateway's")


# For /openapi.json: the gateway answers them.
_MODEL_ROUTES: Final = (
    Route("GET", MODELS_PATH, _elsewhere, Access.INFER, MODELS_SUMMARY, "models", ModelList),
    Route("GET", MODEL_PATH, _elsewhere, Access.INFER, MODEL_SUMMARY, "models", ModelView),
    *(
        Route("POST", path, _elsewhere, Access.INFER, text, "models", stream=True)
        for path, text in (MODEL_PATHS | FORM_PATHS).items()
    ),
)


def build_app(context: ApiContext, *, more_routes: Iterable[web.RouteDef] = ()) -> web.Application:
    """Builds the application. Serve it with `handler_cancellation=True`: a client that disconnects ends its request.

    Args:
        context: what the handlers use.
        more_routes: the agents' routes, whose handlers authenticate.

    Raises:
        RouteWithoutAccessError: `more_routes` has another route, or a route is outside the table.
    """
    app = web.Application(
        middlewares=[
            middlewares.receive,
            represent,
            audit,
            middlewares.answer_errors,
            middlewares.authenticate,
            middlewares.limit,
        ],
        client_max_size=MAX_BODY_BYTES,
    )
    app[CONTEXT] = context
    app[middlewares.FAILURES_LOGGED] = LogLimit()
    app[session.WRONG_KEYS] = Tries(session.WRONG_KEYS_A_MINUTE)
    app[session.LOGINS] = Tries(session.LOGINS_A_MINUTE)
    streams = app[STREAMS] = Streams()
    logs.bound_logs(app)
    app[live_socket.SOCKETS] = live_socket.sockets()
    waits = app[middlewares.DATABASE_WAITS] = middlewares.DatabaseWaits()
    app[KEYS] = KeyRing(
        context.database.listen_connection,
        context.changes,
        ended=streams.end_of,
        away=lambda away: waits.note(away=away),
        local=context.local_keys,
    )
    app[KEPT_INVENTORY] = KeptInventory(context.database)
    app[deployments.CREATIONS] = Creations(context.database)
    app[deployments.HEADS] = {}
    app.on_response_prepare.append(middlewares.note_start)
    app.on_shutdown.append(streams.end)
    app.cleanup_ctx.extend(
        (
            audit_context,
            _key_ring_context,
            representation_context,
            watch.feed_context,
            feeds_context,
            agent_proxies_context,
            dry_runs_context,
            pending.pending_context,
            catalog.catalog_context,
            ledger.attention_context,
            metrics.metrics_context,
        )
    )
    table = {(route.method, route.canonical): route for route in all_routes(context.version)}
    table |= {(route.method, route.path): route for route in map(_agents_route, more_routes)}
    for route in table.values():
        app.router.add_route(route.method, route.path, route.handler)
    app[middlewares.ROUTES] = table
    _check(app)
    return app


async def _key_ring_context(app: web.Application) -> AsyncIterator[None]:
    app[KEYS].start()
    try:
        yield
    finally:
        await app[KEYS].stop()


def _agents_route(given: web.RouteDef) -> Route:
    if (given.method, given.path) not in _SELF_AUTHENTICATING:
        raise RouteWithoutAccessError(f"{given.method} {given.path}: no access is stated for it")
    # The hub limits how long a connection or a join takes.
    return Route(given.method, given.path, given.handler, Access.OPEN, "For agents", "agents", stream=True)


def _check(app: web.Application) -> None:
    for route in app.router.routes():
        canonical = route.resource.canonical if route.resource is not None else ""
        if (route.method, canonical) not in app[middlewares.ROUTES]:
            raise RouteWithoutAccessError(f"{route.method} {canonical}: no access is stated for it")
