"""What a write may require of the object: every route keeps to it, or refuses it."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from controller.api.app import all_routes
from controller.api.route import Access, Route
from controller.live.same_origin import SAFE_METHODS
from controller.store.core.database import Database
from support.database.ledger import add_host
from support.leading.served_api import ServedApi

WRITES = [
    route for route in all_routes("x") if route.method not in SAFE_METHODS and route.access is not Access.OPEN
]  # fmt: skip
GENERATIONS = [route for route in WRITES if route.expects]
OTHERS = [route for route in WRITES if not route.expects]
DEPLOYMENT = {"engine": "simulated", "update": "rolling", "replicas": {"min": 0, "max": 2}}
POLICY = {"min_gpu_utilization": 50, "time_window": "1m"}
BODIES: Mapping[str, Any] = {"scale": {"replicas": 1}, "wake": {"for_s": 1}, "undo": {}}


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def body_of(route: Route, object_: str) -> Any:
    if route.method == "PUT":
        return POLICY if "policies" in route.path else DEPLOYMENT | {"replicas": 2, "model": f"path:/{object_}"}
    if route.method == "PATCH":
        return {"labels": {"gpuward.io/rack": object_}}
    return BODIES.get(route.path.rpartition("/")[2])


def test_every_write_of_what_shows_a_generation_knows_it() -> None:
    shows = re.compile("/api/v1/(deployments|policies|workers|gpus)/{(name|uuid)}(?!/cache)")
    assert {named(route) for route in GENERATIONS} == {named(route) for route in WRITES if shows.match(route.path)}


@pytest.fixture
async def objects(api: ServedApi, db: Database) -> None:
    """One of each kind, all of the name `a`."""
    assert (await api.call("PUT", "/api/v1/deployments/a", json=DEPLOYMENT))[0] == 201
    assert (await api.call("PUT", "/api/v1/policies/a", json=POLICY))[0] == 201
    await add_host(db, "a", gpus=1, gib=80)


def path_of(route: Route, name: str = "a") -> str:
    return route.path.replace("{name}", name).replace("{uuid}", "GPU-a-0")


@pytest.mark.parametrize("headers", [{"If-Match": '"1"'}, {"If-None-Match": "*"}, {"If-None-Match": '"1"'}])
async def test_what_has_no_generation_refuses_a_precondition(api: ServedApi, headers: dict[str, str]) -> None:
    for route in OTHERS:
        path = re.sub(r"\{\w+\}", "nothing", route.canonical)
        status, body = await api.call(route.method, path, headers=headers, json={})
        (header,) = headers
        assert (status, body["error"]["message"].startswith(f"{header}: ")) == (400, True), (path, body)
        assert "leave the header out" in body["error"]["message"]


@pytest.mark.usefixtures("objects")
async def test_a_write_to_another_generation_changes_nothing(api: ServedApi) -> None:
    events = await api.get("/api/v1/events")
    for route in GENERATIONS:
        path = path_of(route)
        for generation in (0, 7):
            status, body = await api.call(
                route.method, path, headers={"If-Match": f'"{generation}"'}, json=body_of(route, "a")
            )
            message = body["error"]["message"]
            assert (status, body["error"]["code"]) == (412, "generation_conflict"), (named(route), body)
            exists_already = "exists already, at generation 1" in message
            assert exists_already == (route.expects == "state" and generation == 0), (named(route), message)
            assert exists_already or f"is at generation 1, not {generation};" in message, (named(route), message)
        if route.expects == "generation":
            for value in ("*", '"1"'):
                status, body = await api.call(
                    route.method, path, headers={"If-None-Match": value}, json=body_of(route, "a")
                )
                assert (status, "send If-Match: GENERATION" in body["error"]["message"]) == (400, True), named(route)
    assert await api.get("/api/v1/events") == events


async def test_a_write_to_the_present_generation_is_done(api: ServedApi, db: Database) -> None:
    await add_host(db, "a", gpus=1, gib=80)
    deletes_last = sorted(GENERATIONS, key=lambda route: route.method == "DELETE")
    for number, route in enumerate(deletes_last):
        name = f"d{number}"
        if "workers" in route.path:
            name = "a"
        elif "gpus" not in route.path:
            kind, spec = ("policies", POLICY) if "policies" in route.path else ("deployments", DEPLOYMENT)
            assert (await api.call("PUT", f"/api/v1/{kind}/{name}", json=spec))[0] == 201
        value = ('W/"1"', '"1"', "1")[number % 3]
        status, body = await api.call(
            route.method, path_of(route, name), headers={"If-Match": value}, json=body_of(route, name)
        )
        code = body["error"]["code"] if status >= 400 else ""
        assert status < 400 or code in ("nothing_to_undo", "in_use"), (named(route), body)


async def test_if_none_match_creates_and_overwrites_nothing(api: ServedApi) -> None:
    for kind, spec in (("deployments", DEPLOYMENT), ("policies", POLICY)):
        path, headers = f"/api/v1/{kind}/new", {"If-None-Match": "*"}
        assert (await api.call("PUT", path, json=spec, headers=headers))[0] == 201
        status, body = await api.call("PUT", path, json=spec, headers=headers)
        assert (status, "exists already, at generation 1" in body["error"]["message"]) == (412, True)
        assert (await api.call("PUT", path, json=spec, headers={"If-None-Match": '"1"'}))[0] == 400
