"""What operators may write in a deployment: on a real API, for apply, plan and defrag alike."""

import asyncio
from typing import Any

import pytest

from controller.domain.access.grants import Grant
from controller.store.core.database import Database
from rig.simulated_args import known_here
from support.api_calls import PLAN
from support.leading.served_api import ServedApi, served

SERVER = {"engine": "vllm", "model": "hf:org/name"}
TRUSTING = {**SERVER, "args": {"trust-remote-code": True}}
PRIVILEGED = [
    ({"command": ["sleep", "60"]}, "command"),
    (TRUSTING, "args.trust-remote-code"),
    ({**SERVER, "env": {"LD_PRELOAD": "/x.so"}}, "env.LD_PRELOAD"),
    ({**SERVER, "runtime": "docker", "image": "vllm/vllm-openai:latest"}, "image"),
    ({**SERVER, "runtime": "docker", "docker": {"volumes": {"/etc": "/etc"}}}, "docker.volumes./etc"),
    ({**SERVER, "args": {"allowed_local_media_path": "/"}}, "args.allowed_local_media_path"),
]


async def put(api: ServedApi, name: str, body: dict[str, Any], role: str) -> tuple[int, Any]:
    return await api.call("PUT", f"/api/v1/deployments/{name}", role=role, json=body)


@pytest.mark.parametrize(("body", "path"), PRIVILEGED)
async def test_apply_plan_and_defrag_judge_alike(api: ServedApi, body: dict[str, Any], path: str) -> None:
    manifest = {"kind": "Deployment", "name": "a", **body}
    calls = (
        ("PUT", "/api/v1/deployments/a", body),
        ("POST", PLAN, {"manifests": [manifest]}),
        ("POST", "/api/v1/defrag", {"manifests": [manifest]}),
    )
    for method, url, sent in calls:
        status, answer = await api.call(method, url, role="operator", json=sent)
        assert (status, answer["error"]["code"]) == (403, "forbidden"), (url, answer)
        assert [one["path"] for one in answer["error"]["details"]["problems"]] == [path]
        assert "GPUWARD_OPERATORS_MAY=" in answer["error"]["message"]
    assert (await api.get("/api/v1/deployments"))["items"] == []
    assert (await put(api, "a", body, "admin"))[0] == 201


async def test_an_operator_works_with_what_an_administrator_applied(api: ServedApi) -> None:
    assert (await put(api, "a", TRUSTING, "admin"))[0] == 201
    in_place = {**TRUSTING, "replicas": 3, "priority": 7, "labels": {"team": "b"}}
    for body in (TRUSTING, in_place):
        assert (await put(api, "a", body, "operator"))[0] == 200
    for verb, body in (("scale", {"replicas": 2}), ("stop", None), ("start", None)):
        status, _ = await api.call("POST", f"/api/v1/deployments/a/{verb}", role="operator", json=body)
        assert status == 200, verb
    for changed in (
        {**TRUSTING, "model": "hf:evil/name"},
        {**TRUSTING, "args": {"trust-remote-code": True, "seed": 1}},
        {**TRUSTING, "env": {"A": "b"}},
    ):
        status, answer = await put(api, "a", changed, "operator")
        assert (status, answer["error"]["code"]) == (403, "forbidden"), changed
        status, _ = await api.call(
            "POST", PLAN, role="operator", json={"manifests": [{"kind": "Deployment", "name": "a", **changed}]}
        )
        assert status == 403
    # Without the flag it needs no grant; to bring it back does.
    assert (await put(api, "a", SERVER, "operator"))[0] == 200
    assert (await put(api, "a", TRUSTING, "operator"))[0] == 403
    # A container of the engine's default image needs none.
    assert (await put(api, "c", {**SERVER, "runtime": "docker", "docker": {"pull": "always"}}, "operator"))[0] == 201
    # A deleted name is not a stored spec.
    await put(api, "b", TRUSTING, "admin")
    assert (await api.call("DELETE", "/api/v1/deployments/b", role="operator"))[0] == 202
    assert (await put(api, "b", TRUSTING, "operator"))[0] == 403


async def test_an_operator_repeats_what_an_administrator_changes_meanwhile(api: ServedApi) -> None:
    """A repeated spec is judged against what is stored when it is written, not against what was read before."""
    specs = [{**TRUSTING, "args": {"trust-remote-code": True, "seed": seed}} for seed in range(12)]
    assert (await put(api, "a", specs[0], "admin"))[0] == 201
    stale: list[int] = []

    async def administrator() -> None:
        for spec in specs[1:]:
            assert (await put(api, "a", spec, "admin"))[0] == 200
            await asyncio.sleep(0.01)

    async def operator() -> None:
        while not done.is_set():
            spec = (await api.get("/api/v1/deployments/a"))["spec"]
            status, answer = await put(api, "a", spec, "operator")
            assert status == 200 or (status, answer["error"]["code"]) == (403, "forbidden"), answer
            stale.extend([] if status == 200 else [status])

    done = asyncio.Event()
    operators = [asyncio.create_task(operator()) for _ in range(4)]
    await administrator()
    done.set()
    await asyncio.gather(*operators)
    stored = await api.get("/api/v1/deployments/a")
    assert stored["spec"]["args"] == specs[-1]["args"]
    assert stored["generation"] == len(specs), "no operator made a revision"
    assert stale, "some operators came too late: else this tests nothing"


async def test_a_setting_grants_operators_some_of_it(db: Database) -> None:
    async with served(db, operators_may=frozenset({Grant.CODE, Grant.COMMAND})) as api:
        assert (await put(api, "a", TRUSTING, "operator"))[0] == 201
        assert (await put(api, "b", {"command": ["sleep", "60"]}, "operator"))[0] == 201
        status, answer = await put(api, "c", {**TRUSTING, "env": {"PATH": "/x"}}, "operator")
        assert status == 403
        assert [one["path"] for one in answer["error"]["details"]["problems"]] == ["env.PATH"]


async def test_what_an_earlier_version_took_goes_on_and_is_warned_about(db: Database) -> None:
    """A stored spec that needs a grant only since there is a list is repeated and scaled, and says what it needs."""
    held = {**SERVER, "args": {"a-flag-of-next-year": 1}, "env": {"LESSOPEN": "|x", "NCCL_DEBUG": "INFO"}}
    async with served(db) as api:
        # As an operator's key left it there when nothing was asked for it.
        assert (await put(api, "a", held, "admin"))[0] == 201
        status, answer = await put(api, "a", held, "operator")
        assert (status, answer["generation"]) == (200, 1)
        (warning,) = answer["warnings"]
        for word in ("args.a-flag-of-next-year", "env.LESSOPEN", "code", "environment"):
            assert word in warning
        assert "NCCL_DEBUG" not in warning
        manifests = {"manifests": [{"kind": "Deployment", "name": "a", **held}]}
        for url in ("/api/v1/apply", PLAN):
            status, answer = await api.call("POST", url, role="operator", json=manifests)
            assert (status, len(answer["warnings"])) == (200, 1), url
            assert answer["warnings"][0].startswith("a: ")
        status, answer = await put(api, "a", {**held, "replicas": 3}, "operator")
        assert (status, len(answer["warnings"])) == (200, 1)
        status, answer = await put(api, "a", {**held, "args": {"a-flag-of-next-year": 2}}, "operator")
        assert (status, len(answer["error"]["details"]["problems"])) == (403, 2)
        assert (await put(api, "a", {**held, "replicas": 3}, "admin"))[1]["warnings"] == []
    async with served(db, operators_may=frozenset({Grant.CODE, Grant.ENVIRONMENT})) as api:
        assert (await put(api, "a", {**held, "replicas": 3}, "operator"))[1]["warnings"] == []


async def test_who_may_give_a_command_may_set_its_variables(db: Database) -> None:
    command = {"command": ["serve", "{port}"], "env": {"LD_PRELOAD": "/x.so", "LESSOPEN": "|x"}}
    async with served(db, operators_may=frozenset({Grant.COMMAND})) as api:
        assert (await put(api, "a", command, "operator"))[0] == 201
        assert (await put(api, "b", {**SERVER, "env": command["env"]}, "operator"))[0] == 403


async def test_retired_args_are_refused_unless_they_are_stored(api: ServedApi) -> None:
    """Args of the simulated engine that an earlier version knew, in a spec that it stored."""
    held = {"engine": "simulated", "args": {"token_seconds": 1, "memory": "1GiB"}}
    for body in (held, {"manifests": [{"kind": "Deployment", "name": "a", **held}]}):
        path = "/api/v1/deployments/a" if body is held else "/api/v1/apply"
        status, answer = await api.call("PUT" if body is held else "POST", path, json=body)
        assert (status, answer["error"]["code"]) == (400, "invalid")
        assert [problem["path"] for problem in answer["error"]["details"]["problems"]] == ["args.token_seconds"]
    with known_here():
        assert (await put(api, "a", held, "operator"))[0] == 201
    for unchanged in (held, {**held, "replicas": 2}):
        status, answer = await put(api, "a", unchanged, "operator")
        assert (status, answer["warnings"]) == (200, ["args.token_seconds: has no effect any more; remove it"])
    status, answer = await put(api, "a", {**held, "args": {"token_seconds": 1, "memory": "2GiB"}}, "admin")
    assert (status, answer["error"]["details"]["problems"][0]["path"]) == (400, "args.token_seconds")
    status, answer = await put(api, "a", {**held, "args": {"memory": "1GiB"}}, "operator")
    assert (status, answer["warnings"]) == (200, [])
