"""Query parameters: a route takes those that it states, and names any other."""

import re

import pytest

from controller.api.app import all_routes
from controller.api.route import Access
from support.leading.served_api import ServedApi


async def test_every_route_refuses_a_parameter_that_it_does_not_state(api: ServedApi) -> None:
    for route in all_routes("x"):
        if route.access is Access.OPEN or route.path == "/metrics":  # the gateway answers that one
            continue
        path = re.sub(r"\{\w+\}", "nothing", route.canonical)
        status, body = await api.call(route.method, f"{path}?deploment=chat")
        assert (status, body["error"]["code"]) == (400, "invalid"), path
        (problem,) = body["error"]["details"]["problems"]
        assert (problem["path"], "unknown query parameter" in problem["message"]) == ("deploment", True), path


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("instances?deploment=chat", "unknown query parameter; did you mean 'deployment'?"),
        ("events?raeson=crash", "unknown query parameter; did you mean 'reason'?"),
        ("keys?limits=1", "unknown query parameter; did you mean 'limit'?"),
        ("me?deployment=x", "unknown query parameter; this path takes none"),
        ("deployments/chat/idle?zzzzzz=x", "unknown query parameter; known: cursor, limit, since, uid"),
    ],
)
async def test_a_typing_error_is_named_with_advice(api: ServedApi, path: str, message: str) -> None:
    status, body = await api.call("GET", f"/api/v1/{path}")
    assert (status, body["error"]["details"]["problems"][0]["message"]) == (400, message)


async def test_many_and_long_ones_cost_little(api: ServedApi) -> None:
    many = "&".join(f"{'x' * 60}{n}=1" for n in range(100))
    status, body = await api.call("GET", f"/api/v1/deployments?{many}")
    assert (status, len(body["error"]["details"]["problems"])) == (400, 8)


@pytest.mark.parametrize("path", ["pending", "attention", "keys", "tokens", "workers"])
async def test_every_list_takes_the_parameters_of_a_page(api: ServedApi, path: str) -> None:
    assert (await api.call("GET", f"/api/v1/{path}?limit=5"))[0] == 200


async def test_pages_and_probes_take_what_comes(api: ServedApi) -> None:
    assert (await api.call("GET", "/ui/events?deploment=chat"))[0] == 200
    assert (await api.call("GET", "/healthz?x=1"))[0] == 200
    assert (await api.call("GET", "/api/v1/events?deploment=chat", headers={"Authorization": "Bearer wrong"}))[0] == 401
