"""The routes that deployments and policies share: apply, read, delete, by name and generation."""

from dataclasses import dataclass
from typing import Any

import pytest

from support.api_calls import problems
from support.leading.served_api import ROLES, ServedApi


@dataclass(frozen=True)
class Kind:
    """One kind of manifest: a spec, and a change of it."""

    kind: str
    path: str
    spec: dict[str, Any]
    change: dict[str, Any]
    deleted: int  # status of a delete


POLICY = {"min_gpu_utilization": 50, "time_window": "1m"}
KINDS = (
    Kind("Deployment", "/api/v1/deployments", {"engine": "simulated"}, {"replicas": 4}, 202),
    Kind("UtilizationPolicy", "/api/v1/policies", POLICY, {"dry_run": True}, 200),
)
EVERY_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)


@EVERY_KIND
async def test_apply_read_and_delete(api: ServedApi, kind: Kind) -> None:
    path = f"{kind.path}/a"
    async with api.session.put(api.url + path, json=kind.spec, headers=api.header("operator")) as answer:
        assert (answer.status, answer.headers["X-Gpuward-Outcome"], answer.headers["ETag"]) == (201, "created", '"1"')
        view = await answer.json()
    assert (view["kind"], view["name"], view["generation"]) == (kind.kind, "a", 1)
    whole = {"kind": kind.kind, "name": "a", **view["spec"]}
    for same in (view["spec"], whole):
        status, again = await api.call("PUT", path, json=same)
        assert (status, again["generation"]) == (200, 1), "a read spec and a whole manifest apply unchanged"
    changed = {**kind.spec, **kind.change}
    status, refusal = await api.call("PUT", path, json=changed, headers={"If-Match": '"2"'})
    assert (status, refusal["error"]["code"]) == (412, "generation_conflict")
    status, view = await api.call("PUT", path, json=changed, headers={"If-Match": '"1"'})
    assert (status, view["generation"]) == (200, 2)
    async with api.session.get(api.url + path, headers=api.header("viewer")) as answer:
        assert (answer.headers["ETag"], (await answer.json())["spec"]) == ('"2"', view["spec"])
    assert [one["name"] for one in (await api.get(kind.path))["items"]] == ["a"]
    status, refusal = await api.call("DELETE", path, headers={"If-Match": "1"})
    assert (status, refusal["error"]["code"]) == (412, "generation_conflict")
    assert (await api.call("DELETE", path))[0] == kind.deleted


@EVERY_KIND
async def test_invalid_names_and_generations_are_refused(api: ServedApi, kind: Kind) -> None:
    async def refused(method: str, name: str, **options: Any) -> tuple[int, str]:
        status, answer = await api.call(method, f"{kind.path}/{name}", **options)
        return status, answer["error"]["code"]

    assert "must be a DNS label" in (await problems(api, "PUT", f"{kind.path}/Not_A_Label", kind.spec))["name"]
    assert await refused("PUT", "a", json=kind.spec, headers={"If-Match": "x"}) == (400, "invalid")
    assert await refused("PUT", "a", json=kind.spec, headers={"If-Match": "3"}) == (412, "generation_conflict")
    assert await refused("GET", "unknown") == (404, "not_found")
    assert await refused("DELETE", "unknown") == (404, "not_found")
    assert (await api.get(kind.path))["items"] == []


@EVERY_KIND
async def test_the_roles_of_each_route(api: ServedApi, kind: Kind) -> None:
    for method, path, body, allowed in (
        ("PUT", f"{kind.path}/a", kind.spec, {"operator", "admin"}),
        ("GET", f"{kind.path}/a", None, {"viewer", "operator", "admin"}),
        ("GET", kind.path, None, {"viewer", "operator", "admin"}),
        ("DELETE", f"{kind.path}/a", None, {"operator", "admin"}),
    ):
        for role in ROLES:
            if method == "DELETE":
                await api.call("PUT", f"{kind.path}/a", json=kind.spec)
            status, _ = await api.call(method, path, role=role, **({"json": body} if body else {}))
            assert (status != 403) == (role in allowed), (method, path, role)
