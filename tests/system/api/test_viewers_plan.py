"""Plans with a viewer's key: what is known, within bounds of its own, and nothing that a viewer may not read."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest

from controller.api.dry_run import plan
from controller.api.dry_run.allowances import (
    AT_ONCE,
    MAX_BODY_BYTES_OF_VIEWERS,
    MAX_INSTANCES_OF_VIEWERS,
    MAX_MANIFESTS_OF_VIEWERS,
    MAX_OF_VIEWER_AT_ONCE,
    VIEWERS_AT_ONCE,
)
from controller.domain.placement import Need
from controller.store.core.database import Database
from support.api_calls import PLAN, deployment
from support.database.ledger import GIB, add_host, rows
from support.leading.served_api import ServedApi

JSON = {"Content-Type": "application/json"}
MODEL = {"engine": "transformers", "model": "path:/models/tiny"}


async def planned(
    api: ServedApi,
    *manifests: dict[str, Any],
    role: str = "viewer",
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> tuple[int, Any]:
    body = {"manifests": list(manifests), **more}
    return await api.call("POST", PLAN, role=role, headers=headers or {}, json=body)


async def test_a_viewer_sees_what_an_operator_sees(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=2)
    await api.call("PUT", "/api/v1/deployments/a", json={"engine": "simulated", "resources": {"gpus": 1}})
    changed = deployment("a", resources={"gpus": 1, "gpu_memory": "20GiB"}, replicas=2)
    answers = [await planned(api, changed, role=role, candidates=True) for role in ("viewer", "operator")]
    assert answers[0] == answers[1]
    status, body = answers[0]
    assert (status, [item["fits"] for item in body["items"]]) == (200, [True, True])
    assert body["field_changes"]["a"]
    assert body["candidates"]["a"]["selectable"] == [True, True]
    assert await rows(db, "select generation from deployments") == [{"generation": 1}]
    status, _ = await api.call("PUT", "/api/v1/deployments/a", role="viewer", json={"engine": "simulated"})
    assert status == 403


async def test_no_model_is_read_for_a_viewer(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=1)
    api.surroundings.need = Need(memory_mib=10 * GIB)
    status, body = await planned(api, deployment("a", **MODEL), candidates=True)
    assert (status, body["items"][0]["reason"], api.surroundings.analysed) == (200, "metadata_unknown", [])
    assert "plan it with a key of the role operator" in body["items"][0]["explain"]["message"]
    assert body["candidates"]["a"]["selectable"] == [False]
    await api.call("PUT", "/api/v1/deployments/other", json=MODEL)
    async with db.transaction() as connection:
        need = {"memory_mib": 20 * GIB, "host_memory_mib": 0, "parts": {}, "heads": None, "vocab": None, "notes": []}
        await connection.execute("update revisions set need = $1", need)
    status, body = await planned(api, deployment("a", **MODEL))
    assert (body["items"][0]["memory_mib_per_gpu"], api.surroundings.analysed) == (20 * GIB, [])


@pytest.mark.parametrize("stored", [False, True])
async def test_a_viewer_does_not_learn_which_secrets_exist(api: ServedApi, *, stored: bool) -> None:
    if stored:
        assert (await api.call("PUT", "/api/v1/secrets/hook", json={"value": "s" * 20}))[0] in (200, 201, 204)
    webhook = {"url": "https://example.org/hook", "secret": "hook"}
    rule = {"min_gpu_utilization": 10, "time_window": "10m", "webhook": webhook}
    for manifest in (
        {"kind": "UtilizationPolicy", "name": "p", **rule},
        deployment("a", resources={"gpus": 1}, utilization_policy=rule),
    ):
        assert (await planned(api, manifest))[0] == 200
        assert (await planned(api, manifest, role="operator"))[0] == (200 if stored else 400)


async def test_a_viewer_has_no_grants(api: ServedApi) -> None:
    status, answer = await planned(api, {"kind": "Deployment", "name": "a", "command": ["sleep", "60"]})
    assert (status, answer["error"]["code"]) == (403, "forbidden")
    assert "use a key of role admin" in answer["error"]["message"]


async def test_the_plans_of_viewers_have_bounds_of_their_own(api: ServedApi) -> None:
    many = deployment("a", replicas=MAX_INSTANCES_OF_VIEWERS // 2 + 1)
    status, answer = await planned(api, many, {**many, "name": "b"})
    assert status == 400
    (problem,) = answer["error"]["details"]["problems"]
    assert f"must be at most {MAX_INSTANCES_OF_VIEWERS} instances" in problem["message"]
    assert (await planned(api, many, {**many, "name": "b"}, role="operator"))[0] == 200


async def test_a_viewer_plans_few_manifests_at_a_time(api: ServedApi) -> None:
    many = [deployment(f"d{n}", replicas=0) for n in range(MAX_MANIFESTS_OF_VIEWERS + 1)]
    assert (await planned(api, *many[1:]))[0] == 200
    status, answer = await planned(api, *many)
    assert (status, answer["error"]["code"]) == (400, "invalid")
    (problem,) = answer["error"]["details"]["problems"]
    assert problem["path"] == "manifests"
    assert f"at most {MAX_MANIFESTS_OF_VIEWERS} with a key of the role viewer, got {len(many)}" in problem["message"]
    assert "use a key of the role operator" in problem["message"]
    assert (await planned(api, *many, role="operator"))[0] == 200


async def test_a_viewers_plan_is_short(api: ServedApi) -> None:
    fit = MAX_BODY_BYTES_OF_VIEWERS // 4_096
    short, long = (deployment("a", replicas=0, command=["x" * 4_090] * n) for n in (fit - 1, fit + 1))
    assert (await planned(api, short, role="operator"))[0] != 413
    assert (await planned(api, short))[0] != 413
    status, answer = await planned(api, long)
    assert (status, answer["error"]["code"]) == (413, "too_large")
    assert f"larger than {MAX_BODY_BYTES_OF_VIEWERS} bytes" in answer["error"]["message"]
    assert (await planned(api, long, role="operator"))[0] != 413


class Gate:
    """Holds every pass for a deployment called `slow` until it is opened."""

    def __init__(self, passed: Callable[..., Any]) -> None:
        self._passed = passed
        self.held, self._go = threading.Semaphore(0), threading.Event()

    def __call__(self, present: Any, effects: Any, **named: Any) -> Any:
        if any(effect.name == "slow" for effect in effects):
            self.held.release()
            assert self._go.wait(60)
        return self._passed(present, effects, **named)

    def open(self) -> None:
        self._go.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(plan.plan_items)
    monkeypatch.setattr(plan, "plan_items", gate)
    yield gate
    gate.open()  # a thread that waits would outlive the test


async def under_way(api: ServedApi, count: int) -> None:
    async with asyncio.timeout(30):
        while len(api.app[VIEWERS_AT_ONCE]) != count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)


async def test_viewers_that_hang_up_do_not_hold_up_operators(api: ServedApi, gate: Gate) -> None:
    """A pass that began goes on in its thread when its asker has left."""
    for number in range(AT_ONCE):
        left = asyncio.create_task(planned(api, deployment("slow")))
        await asyncio.to_thread(gate.held.acquire, timeout=1.0 if number else 30.0)
        left.cancel()
        await asyncio.wait([left])
        await under_way(api, 0)
    async with asyncio.timeout(20):
        assert (await planned(api, deployment("a"), role="operator"))[0] == 200
    assert not gate.held.acquire(blocking=False), "one pass of viewers at a time"


async def test_one_key_does_not_take_the_turns_of_other_viewers(api: ServedApi, gate: Gate) -> None:
    _, other = await api.call("POST", "/api/v1/keys", json={"role": "viewer"})
    mine = [asyncio.create_task(planned(api, deployment("slow"))) for _ in range(MAX_OF_VIEWER_AT_ONCE)]
    await under_way(api, MAX_OF_VIEWER_AT_ONCE)
    status, answer = await planned(api, deployment("a"))
    assert (status, answer["error"]["code"]) == (429, "too_many_plans")
    status, answer = await api.call("POST", PLAN, role="viewer", data=b"{", headers=JSON)
    assert (status, answer["error"]["code"]) == (429, "too_many_plans"), "refused before it is parsed"
    header = {"Authorization": f"Bearer {other['key']}"}
    theirs = asyncio.create_task(planned(api, deployment("a"), headers=header))
    await under_way(api, MAX_OF_VIEWER_AT_ONCE + 1)
    gate.open()
    assert [status for status, _ in await asyncio.gather(*mine, theirs)] == [200] * (MAX_OF_VIEWER_AT_ONCE + 1)
    await under_way(api, 0)


async def test_a_slow_sender_takes_no_turn(api: ServedApi) -> None:
    go = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await go.wait()
        yield b"}"

    calls = [
        asyncio.create_task(api.call("POST", PLAN, role="viewer", data=slowly(), headers=JSON))
        for _ in range(MAX_OF_VIEWER_AT_ONCE)
    ]
    await asyncio.sleep(0.2)
    assert (await planned(api, deployment("a", replicas=0)))[0] == 200
    go.set()
    assert {status for status, _ in await asyncio.gather(*calls)} <= {400, 429}
