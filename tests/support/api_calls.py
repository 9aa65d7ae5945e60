"""Calls that several tests of the API share: manifests, plans, and the problems of a refusal."""

from typing import Any

from support.leading.served_api import ServedApi

PLAN = "/api/v1/plan"


def deployment(name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "Deployment", "name": name, "engine": "simulated", **fields}


async def plan(api: ServedApi, *manifests: dict[str, Any]) -> dict[str, Any]:
    """The plan of these manifests."""
    status, body = await api.call("POST", PLAN, role="operator", json={"manifests": list(manifests)})
    assert status == 200, body
    return dict(body)


async def problems(api: ServedApi, method: str, path: str, body: Any, *, code: str = "invalid") -> dict[str, str]:
    """The problems of a refused body, by field."""
    status, answer = await api.call(method, path, json=body)
    assert (status, answer["error"]["code"]) == (400, code), answer
    return {one["path"]: one["message"] for one in answer["error"]["details"]["problems"]}


async def plan_problems(api: ServedApi, *manifests: dict[str, Any]) -> dict[str, str]:
    """The problems of a refused plan, by field."""
    return await problems(api, "POST", PLAN, {"manifests": list(manifests)})
