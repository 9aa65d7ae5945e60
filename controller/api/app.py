"""The HTTP application: every route with its access in one table, and around all of them the same middlewares."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from aiohttp import web

from controller.api import gateway, middlewares
from controller.api.context import CONTEXT, KEYS, ApiContext
from controller.api.dry_run import defrag, explain, plan
from controller.api.openapi import openapi_route
from controller.api.resources import (
    access,
    deployments,
    events,
    gpus,
    health,
    instances,
    ledger,
    logs,
    policies,
    reports,
    utilization,
    watch,
    workers,
)
from controller.api.route import Access, Route
from controller.api.streams import STREAMS, Streams
from controller.api.upstream import upstream_context
from controller.store.access.keys import KeyRing
from schemas.wire import CONNECT_PATH, JOIN_PATH

# Agents show a join token or a credential of their own there, which those handlers check by themselves.
_SELF_AUTHENTICATING: Final = frozenset({("POST", JOIN_PATH), ("GET", CONNECT_PATH)})


class RouteWithoutAccessError(Exception):
    """A route that nobody said who may call: a defect, found at the start and not by a stranger."""


def all_routes(version: str) -> list[Route]:
    """Every route of the API."""
    tables: Sequence[Sequence[Route]] = (
        deployments.ROUTES,
        plan.ROUTES,
        defrag.ROUTES,
        instances.ROUTES,
        explain.ROUTES,
        logs.ROUTES,
        workers.ROUTES,
        gpus.ROUTES,
        policies.ROUTES,
        utilization.ROUTES,
        reports.ROUTES,
        events.ROUTES,
        ledger.ROUTES,
        watch.ROUTES,
        access.ROUTES,
        gateway.ROUTES,
        health.ROUTES,
    )
    routes = [route for table in tables for route in table]
    return [*routes, openapi_route(routes, version)]


def build_app(context: ApiContext, *, more_routes: Iterable[web.RouteDef] = ()) -> web.Application:
    """Builds the application. Serve it with `handler_cancellation=True`, so that a client that goes ends its request.

    Args:
        context: what the handlers are given.
        more_routes: the agents' routes, which authenticate by themselves; no others are taken.

    Raises:
        RouteWithoutAccessError: if one of `more_routes` is none of those, or any route says not who may call it.
    """
    app = web.Application(
        middlewares=[
            middlewares.identify,
            middlewares.answer_errors,
            middlewares.authenticate,
            middlewares.deadline(),
        ],
        client_max_size=gateway.MAX_BODY_BYTES,
    )
    app[CONTEXT] = context
    app[KEYS] = KeyRing(context.database)
    app[STREAMS] = Streams()
    app[plan.ANALYSES_AT_ONCE] = asyncio.Semaphore(plan.MAX_ANALYSES_AT_ONCE)
    app.on_response_prepare.append(middlewares.note_start)
    app.on_shutdown.append(app[STREAMS].end)
    app.cleanup_ctx.append(upstream_context)
    table = {(route.method, route.path): route for route in all_routes(context.version)}
    table |= {(route.method, route.path): route for route in map(_agents_route, more_routes)}
    for route in table.values():
        app.router.add_route(route.method, route.path, route.handler)
    app[middlewares.ROUTES] = table
    _check(app)
    return app


def _agents_route(given: web.RouteDef) -> Route:
    if (given.method, given.path) not in _SELF_AUTHENTICATING:
        raise RouteWithoutAccessError(f"{given.method} {given.path}: no access is stated for it")
    # How long a connection or a join takes is the hub's to limit.
    return Route(given.method, given.path, given.handler, Access.OPEN, "For agents", "agents", stream=True)


def _check(app: web.Application) -> None:
    """Shows that no route has come in beside the table."""
    for route in app.router.routes():
        canonical = route.resource.canonical if route.resource is not None else ""
        if (route.method, canonical) not in app[middlewares.ROUTES]:
            raise RouteWithoutAccessError(f"{route.method} {canonical}: no access is stated for it")
