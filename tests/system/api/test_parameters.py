"""Query parameters: a route takes those that it states, and names any other."""

import re
import uuid
from typing import Any

import msgspec
import pytest

from controller.api.app import all_routes
from controller.api.route import Access, Route
from controller.store.core.database import Database
from support.database.ledger import add_host, add_instance
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


def is_list(route: Route) -> bool:
    fields = () if route.answer is None else msgspec.structs.fields(route.answer)
    return route.method == "GET" and {"items", "next"} <= {one.name for one in fields}


async def test_every_list_and_nothing_else_takes_the_parameters_of_a_page() -> None:
    for route in all_routes("x"):
        assert is_list(route) == ({"limit", "cursor"} <= {query.name for query in route.query}), route.path


@pytest.fixture
async def filled(api: ServedApi, db: Database) -> None:
    """Three of everything that a list holds."""
    for n in range(3):
        await add_host(db, f"w{n}", gpus=1, gib=8)
        await api.call("PUT", f"/api/v1/deployments/d{n}", json={"engine": "simulated"})
        await api.call("PUT", f"/api/v1/policies/p{n}", json={"min_gpu_utilization": 50, "time_window": "1m"})
        await api.call("POST", "/api/v1/tokens")
        await api.call("PUT", f"/api/v1/secrets/s{n}", json={"value": "v"})
        await add_instance(db, (await api.get(f"/api/v1/deployments/d{n}"))["uid"], f"d{n}-a")
        async with db.transaction() as connection:
            await connection.execute("update workers set phase = 'lost' where name = $1", f"w{n}")
            await connection.execute(
                "insert into gateways (id, name, seen_at, beat) values ($1, $2, now(), 1)", uuid.uuid4(), f"g{n}:1"
            )


@pytest.mark.usefixtures("filled")
async def test_the_pages_of_every_list_are_the_whole_list(api: ServedApi) -> None:
    seen = {}
    for route in filter(is_list, all_routes("x")):
        path = route.path.replace("{name}", "d0")
        status, whole = await api.call("GET", path)
        if path.endswith("/cache"):
            continue  # of an agent; see the tests of the model cache
        assert status == 200, (path, whole)
        items, cursor = [], ""
        for _ in range(len(whole["items"]) + 1):
            page = await api.get(f"{path}?limit=1{cursor}")
            assert len(page["items"]) <= 1, path
            items += page["items"]
            if page["next"] is None:
                break
            cursor = f"&cursor={page['next']}"
        assert list(map(named, items)) == list(map(named, whole["items"])), path
        seen[path.rpartition("/")[2]] = len(items)
        status, body = await api.call("GET", f"{path}?cursor=nonsense")
        assert (status, "not issued for this list" in body["error"]["message"]) == (400, True), path
    assert all(n >= 3 for name, n in seen.items() if name != "idle"), seen


def named(item: Any) -> Any:
    return next(item[key] for key in ("id", "uid", "uuid", "instance", "name", "since") if key in item)


async def test_a_parameter_that_counts_once_is_not_given_twice(api: ServedApi) -> None:
    for route in all_routes("x"):
        if route.access is Access.OPEN or route.path == "/metrics":
            continue
        path = re.sub(r"\{\w+\}", "nothing", route.canonical)
        for query in route.query:
            if query.many:
                continue
            status, body = await api.call(route.method, f"{path}?{query.name}=1&{query.name}=2")
            assert status == 400, (path, query.name)
            assert (status, body["error"]["details"].get("problems")) == (
                400,
                [{"path": query.name, "message": "is given 2 times; give it once"}],
            ), (path, query.name)


async def test_a_parameter_that_counts_several_times_may_be(api: ServedApi) -> None:
    many = {(route.path, query.name) for route in all_routes("x") for query in route.query if query.many}
    assert ("/api/v1/events", "reason") in many
    assert ("/api/v1/deployments/{name}/logs", "instance") in many
    assert (await api.call("GET", "/api/v1/events?reason=applied&reason=deleted"))[0] == 200


async def test_pages_and_probes_take_what_comes(api: ServedApi) -> None:
    assert (await api.call("GET", "/ui/events?deploment=chat"))[0] == 200
    assert (await api.call("GET", "/healthz?x=1"))[0] == 200
    assert (await api.call("GET", "/api/v1/events?deploment=chat", headers={"Authorization": "Bearer wrong"}))[0] == 401
