"""The fields in which two revisions of a deployment differ."""

from typing import Any

import pytest

from support.leading.served_api import ServedApi

PATH = "/api/v1/deployments/chat/revisions/diff"
MEMORY = {"field": "resources.gpu_memory", "effect": "replaces"}


@pytest.fixture
async def revisions(api: ServedApi) -> ServedApi:
    """Revisions 1 and 3; generation 2 changed in place."""
    for memory, priority in (("20GiB", 100), ("20GiB", 200), ("24GiB", 200)):
        body = {"engine": "simulated", "priority": priority, "resources": {"gpus": 1, "gpu_memory": memory}}
        status, answer = await api.call("PUT", "/api/v1/deployments/chat", json=body)
        assert status in (200, 201), answer
    return api


async def refused(api: ServedApi, query: str, path: str = PATH) -> tuple[int, Any]:
    status, answer = await api.call("GET", path + query, role="viewer")
    return status, answer["error"]


async def test_fields_are_told_as_by_a_plan(revisions: ServedApi) -> None:
    priority = {"field": "priority", "effect": "in_place"}
    for old, new, memories, priorities in (
        (1, 3, ("20GiB", "24GiB"), (100, 200)),
        (3, 1, ("24GiB", "20GiB"), (200, 100)),
    ):
        body = await revisions.get(f"{PATH}?from={old}&to={new}", role="viewer")
        fields = [
            {**priority, "old": priorities[0], "new": priorities[1]},
            {**MEMORY, "old": memories[0], "new": memories[1]},
        ]
        assert body == {"old": old, "new": new, "fields": fields}
    assert (await revisions.get(f"{PATH}?from=3&to=3"))["fields"] == []


async def test_wrong_questions_are_refused(revisions: ServedApi) -> None:
    status, error = await refused(revisions, "?from=1&to=2")
    assert (status, error["message"]) == (
        404, "deployment 'chat' has no revision 2; gpuward rollout history chat lists them"
    )  # fmt: skip
    status, error = await refused(revisions, "?from=1&to=3", "/api/v1/deployments/none/revisions/diff")
    assert (status, error["code"]) == (404, "not_found")
    for query, field in (("", "from"), ("?from=1", "to"), ("?from=0&to=3", "from"), ("?from=1&to=x", "to"),
                         (f"?from=1&to={2**31}", "to"), ("?from=1&to=3&all=1", "all")):  # fmt: skip
        status, error = await refused(revisions, query)
        assert (status, error["details"]["problems"][0]["path"]) == (400, field), query
