"""Access: every route of the built application, without a key and with every role."""

import re

import pytest
from aiohttp import web

from controller.api.app import RouteWithoutAccessError, all_routes
from controller.api.route import Route
from controller.store.core.database import Database
from schemas.wire import CONNECT_PATH, JOIN_PATH
from support.leading.served_api import ROLES, ServedApi, served

OPEN = {
    **{("GET", path): 200 for path in ("/healthz", "/readyz", "/ui", "/ui/{path}")},
    ("GET", "/"): 404,  # no browser asks
    ("GET", "/api/v1/ca"): 404,  # there is no authority here; its certificate is public
    ("POST", "/api/v1/session"): 400,  # no key in the body
    ("DELETE", "/api/v1/session"): 204,  # it is over already
}
READ = {"viewer", "operator", "admin"}
OPERATE = {"operator", "admin"}
INFER = {"inference", "operator", "admin"}


def concrete(path: str) -> str:
    return re.sub(r"\{\w+\}", "nothing", path)


def allowed(route: Route) -> set[str]:
    """The roles that the contract allows, derived from method and path and not from the table."""
    if route.path.startswith("/v1/"):
        return INFER
    if any(part in route.path for part in ("/keys", "/tokens", "/secrets", "/repair", "/audit-log")):
        return {"admin"}
    if route.path in ("/api/v1/plan", "/api/v1/plan/policies"):
        return READ
    if route.path == "/api/v1/usage":
        return set(ROLES)  # a key for inference sees its own
    if route.method in ("DELETE", "PATCH") and "/workers" in route.path:
        return {"admin"}
    reads = route.method == "GET" and not route.path.endswith("/logs")  # those for viewers where a setting allows it
    return READ if reads else OPERATE


async def hello(_request: web.Request) -> web.Response:
    return web.Response(text="hello")


async def test_every_route_refuses_without_a_key(api: ServedApi) -> None:
    registered = {
        (route.method, route.resource.canonical) for route in api.app.router.routes() if route.resource is not None
    }
    assert registered == {(route.method, route.canonical) for route in all_routes("x")}
    for method, path in sorted(registered):
        for headers in ({}, {"Authorization": "Bearer gpw_wrong"}, {"Authorization": "Basic YTpi"}):
            async with api.session.request(method, api.url + concrete(path), headers=headers) as answer:
                if (method, path) in OPEN:
                    assert answer.status == OPEN[method, path]
                    continue
                assert answer.status == 401, (method, path)
                body = await answer.json()
                assert body["error"]["code"] == "unauthenticated"
                assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("role", ROLES)
async def test_every_route_refuses_other_roles(api: ServedApi, role: str) -> None:
    for route in all_routes("x"):
        if (route.method, route.canonical) in OPEN or (route.stream and route.path.endswith("/watch")):
            continue
        status, body = await api.call(route.method, concrete(route.canonical), role=role)
        if role in allowed(route):
            assert status not in (401, 403), (route.method, route.path, body)
        else:
            assert (status, body["error"]["code"]) == (403, "forbidden"), (route.method, route.path)
            assert role in body["error"]["message"]


async def test_the_inference_role_cannot_watch(api: ServedApi) -> None:
    status, _ = await api.call("GET", "/api/v1/watch", role="inference")
    assert status == 403


async def test_agents_routes_are_open_and_no_others_can_be_added(db: Database) -> None:
    agents = [web.post(JOIN_PATH, hello), web.get(CONNECT_PATH, hello)]
    async with served(db, more_routes=agents) as api:
        for method, path, expected in (("POST", JOIN_PATH, 200), ("GET", CONNECT_PATH, 200), ("GET", JOIN_PATH, 401)):
            async with api.session.request(method, api.url + path) as answer:
                assert answer.status == expected
    for other in (web.get("/api/v1/backdoor", hello), web.post(CONNECT_PATH, hello)):
        with pytest.raises(RouteWithoutAccessError):
            async with served(db, more_routes=[other]):
                pass


async def test_unknown_paths_and_methods_require_a_key(api: ServedApi) -> None:
    for method, path, status, code in (
        ("GET", "/api/v1/nothing", 404, "not_found"),
        ("PATCH", "/api/v1/deployments/a", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
    ):
        async with api.session.request(method, api.url + path) as answer:
            assert answer.status == 401
        got, body = await api.call(method, path, role="viewer")
        assert (got, body["error"]["code"]) == (status, code)


@pytest.mark.parametrize("allowed_by_setting", [False, True])
async def test_viewers_read_logs_where_a_setting_allows_it(migrated: Database, *, allowed_by_setting: bool) -> None:
    async with served(migrated, viewers_read_logs=allowed_by_setting) as api:
        for role in ("viewer", "operator", "admin", "inference"):
            may = role in OPERATE or (allowed_by_setting and role == "viewer")
            for path in ("/api/v1/instances/nothing/logs", "/api/v1/deployments/nothing/logs"):
                status, body = await api.call("GET", path, role=role)
                assert (status, body["error"]["code"]) == ((404, "not_found") if may else (403, "forbidden"))
            if role != "inference":
                assert ("logs" in (await api.get("/api/v1/me", role=role))["may"]) is may
