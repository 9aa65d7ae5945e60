"""Applies of several manifests at once: all of them or none, and only of what was planned."""

import asyncio
from typing import Any

import pytest

from controller.store.core.database import Database
from support.api_calls import PLAN, deployment, plan
from support.database.ledger import rows
from support.leading.served_api import ServedApi

APPLY = "/api/v1/apply"
RULE = {"min_gpu_utilization": 10, "time_window": "10m"}


def policy(name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "UtilizationPolicy", "name": name, **RULE, **fields}


async def together(api: ServedApi, *manifests: dict[str, Any], role: str = "operator", **more: Any) -> tuple[int, Any]:
    return await api.call("POST", APPLY, role=role, json={"manifests": list(manifests), **more})


async def stored(db: Database) -> dict[str, int]:
    query = """select 'policy/' || name as name, generation from policies union all
               select 'deployment/' || name, generation from deployments where deleted_at is null"""
    return {row["name"]: row["generation"] for row in await rows(db, query)}


async def expected_by(api: ServedApi, *manifests: dict[str, Any]) -> dict[str, Any]:
    """What a plan says that the objects are."""
    found = await plan(api, *manifests)
    return {"deployments": found["generations"], "policies": found["policy_generations"]}


async def test_policies_come_first_and_each_outcome_is_told(api: ServedApi, db: Database) -> None:
    first = deployment("a", resources={"gpus": 1}, utilization_policy="p")
    status, body = await together(api, first, deployment("b"), policy("p"))
    assert status == 200
    told = [(one["kind"], one["name"], one["generation"], one["outcome"]) for one in body["items"]]
    assert told == [("UtilizationPolicy", "p", 1, "created"), ("Deployment", "a", 1, "created"),
                    ("Deployment", "b", 1, "created")]  # fmt: skip
    _, body = await together(api, first, deployment("b", priority=7), policy("p", min_gpu_utilization=20))
    assert [one["outcome"] for one in body["items"]] == ["updated", "unchanged", "updated"]
    _, body = await together(api, deployment("b", priority=7, env={"LANG": "b"}, placement={"workers": ["none"]}))
    assert [one["outcome"] for one in body["items"]] == ["replaced"]
    assert body["warnings"] == ["b: placement.workers: unknown worker none; the others are used"]
    assert await stored(db) == {"policy/p": 2, "deployment/a": 1, "deployment/b": 3}
    uids = {one["name"]: one["uid"] for one in body["items"]}
    assert uids == {"b": (await api.get("/api/v1/deployments/b"))["uid"]}


async def test_a_new_default_takes_over_from_the_old_one(api: ServedApi) -> None:
    assert (await together(api, policy("old", default=True)))[0] == 200
    status, body = await together(api, policy("new", default=True), policy("old"))
    assert (status, [one["name"] for one in body["items"]]) == (200, ["old", "new"])


@pytest.mark.parametrize(
    ("second", "status", "path"),
    [
        (deployment("b", resources={"gpus": 1}, utilization_policy="missing"), 400, "[1].utilization_policy"),
        (deployment("b", serving={"aliases": ["a"]}), 400, "[1].serving.aliases"),
        (deployment("b", replicas=-1), 400, "[1].replicas"),
        ({"kind": "Deployment", "name": "b", "command": ["true"]}, 403, "command"),
        (policy("b", webhook={"url": "https://example.org", "secret": "none"}), 400, "[1].webhook.secret"),
    ],
)
async def test_a_bad_second_manifest_leaves_the_first_one_unapplied(
    api: ServedApi, db: Database, second: dict[str, Any], status: int, path: str
) -> None:
    got, answer = await together(api, deployment("a"), second)
    assert (got, [one["path"] for one in answer["error"]["details"]["problems"]]) == (status, [path]), answer
    assert await stored(db) == {}
    assert await rows(db, "select reason from events where reason = 'applied'") == []


async def test_what_is_taken_during_the_apply_undoes_all_of_it(api: ServedApi, db: Database) -> None:
    """The name is taken after the checks: the transaction waits for it, and is refused with its path."""
    async with db.connection() as other:
        holding = other.transaction()
        await holding.start()
        await other.execute(
            "insert into deployments (uid, name, generation, revision, spec) values "
            "('00000000-0000-0000-0000-000000000001', 'other', 1, 1, '{\"engine\": \"simulated\"}')"
        )
        taken = "insert into model_names (name, deployment_uid) values ('c', '00000000-0000-0000-0000-000000000001')"
        await other.execute(taken)
        waiting = asyncio.create_task(together(api, deployment("a"), deployment("b", serving={"aliases": ["c"]})))
        blocked = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        async with asyncio.timeout(10):
            while not await rows(db, blocked):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.02)
        await holding.commit()
    status, answer = await waiting
    assert (status, answer["error"]["details"]["problems"][0]["path"]) == (400, "[1].serving.aliases")
    assert await stored(db) == {"deployment/other": 1}


async def test_what_has_changed_since_the_plan_is_named_and_nothing_is_applied(api: ServedApi, db: Database) -> None:
    await together(api, deployment("changed"), deployment("gone"), deployment("same"), policy("p"))
    manifests = (
        deployment("changed", priority=1), deployment("gone", priority=1), deployment("same", priority=1),
        deployment("new"), policy("p", min_gpu_utilization=20), policy("q"),
    )  # fmt: skip
    expected = await expected_by(api, *manifests)
    assert expected == {"deployments": {"changed": 1, "gone": 1, "same": 1, "new": 0}, "policies": {"p": 1, "q": 0}}
    await together(
        api, deployment("changed", priority=9), deployment("new"), policy("p", min_gpu_utilization=30), policy("q")
    )
    await api.call("DELETE", "/api/v1/deployments/gone")
    before = await stored(db)
    status, answer = await together(api, *manifests, expected=expected)
    assert (status, answer["error"]["code"]) == (412, "generation_conflict")
    changed = {
        (one["kind"], one["name"]): (one["expected"], one["found"]) for one in answer["error"]["details"]["changed"]
    }
    assert changed == {
        ("policy", "p"): (1, 2), ("policy", "q"): (0, 1), ("deployment", "changed"): (1, 2),
        ("deployment", "gone"): (1, 0), ("deployment", "new"): (0, 1),
    }  # fmt: skip
    for text in ("deployment 'changed' is at generation 2, not 1", "'gone' does not exist any more",
                 "deployment 'new' exists already", "policy 'q' exists already"):  # fmt: skip
        assert text in answer["error"]["message"]
    assert await stored(db) == before
    expected = await expected_by(api, *manifests)
    assert (await together(api, *manifests, expected=expected))[0] == 200
    assert (await stored(db))["deployment/same"] == 2


async def test_of_two_applies_of_one_plan_one_is_refused(api: ServedApi, db: Database) -> None:
    names = [f"d{n}" for n in range(6)]
    manifests = [deployment(name) for name in names] + [policy("p")]
    for _ in range(5):
        expected = await expected_by(api, *manifests)
        changed = [{**one, "priority": 1 + n} if one["kind"] == "Deployment" else one
                   for n, one in enumerate(manifests)]  # fmt: skip
        answers = await asyncio.gather(
            together(api, *changed, expected=expected), together(api, *reversed(changed), expected=expected)
        )
        assert sorted(status for status, _ in answers) == [200, 412], answers
        for name in names:
            await api.call("DELETE", f"/api/v1/deployments/{name}")
        await api.call("DELETE", "/api/v1/policies/p")
        await rows(db, "delete from deployments where deleted_at is not null")


async def test_applies_that_create_the_same_in_other_orders_wait_for_one_another(api: ServedApi, db: Database) -> None:
    """Without expectations: each finds what the other one made, and none is refused or waits for a deadlock."""
    manifests = [deployment(f"d{n}") for n in range(8)] + [policy(f"p{n}") for n in range(8)]
    for _ in range(3):
        answers = await asyncio.gather(*(together(api, *some) for some in (manifests, manifests[::-1]) * 2))
        assert [status for status, _ in answers] == [200] * 4, answers
        outcomes = [{one["outcome"] for one in body["items"]} for _, body in answers]
        assert outcomes.count({"created"}) == 1
        assert outcomes.count({"unchanged"}) == 3
        await rows(db, "delete from deployments")
        await rows(db, "delete from policies")


async def test_a_single_object_may_be_expected_not_to_exist(api: ServedApi) -> None:
    for path, body in (("deployments/a", {"engine": "simulated"}), ("policies/p", RULE)):
        never = {"If-None-Match": "*"}
        status, _ = await api.call("PUT", f"/api/v1/{path}", json=body, headers=never)
        assert status == 201
        status, answer = await api.call("PUT", f"/api/v1/{path}", json=body, headers=never)
        assert (status, answer["error"]["code"]) == (412, "generation_conflict")
        assert "exists already, at generation 1" in answer["error"]["message"]
        for wrong in ({"If-None-Match": '"1"'}, {"If-None-Match": "*", "If-Match": '"1"'}):
            status, answer = await api.call("PUT", f"/api/v1/{path}", json=body, headers=wrong)
            assert (status, answer["error"]["code"]) == (400, "invalid")


async def test_bad_bodies_are_refused(api: ServedApi) -> None:
    for body, path in (
        ({}, "manifests"), ({"manifests": []}, "manifests"), ({"manifests": [deployment("a")], "expect": {}}, "expect"),
        ({"manifests": [deployment("a")], "expected": {"deployments": {"a": -1}}}, "expected.deployments.a"),
        ({"manifests": [deployment("a"), deployment("a")]}, "[1].name"),
    ):  # fmt: skip
        status, answer = await api.call("POST", APPLY, role="operator", json=body)
        assert (status, answer["error"]["details"]["problems"][0]["path"]) == (400, path), answer
    for role in ("viewer", "inference"):
        assert (await together(api, deployment("a"), role=role))[0] == 403
    assert (await api.call("POST", PLAN, role="operator", json={"manifests": [deployment("a")]}))[0] == 200


async def test_a_policy_and_what_names_it_are_judged_together_for_the_secret_that_signs(api: ServedApi) -> None:
    secret = {"value": "a secret that signs", "deployments": ["team-a-*"]}
    assert (await api.call("PUT", "/api/v1/secrets/hook", json=secret))[0] == 204
    webhook = {"url": "https://hooks.example/x", "secret": "hook"}
    written = {"kind": "UtilizationPolicy", "name": "p", "min_gpu_utilization": 5, "time_window": "5m"}
    for name, refused in (("chat", {"[1].utilization_policy"}), ("team-a-chat", set())):
        named = {"kind": "Deployment", "name": name, "engine": "simulated", "utilization_policy": "p"}
        body = {"manifests": [{**written, "webhook": webhook}, named]}
        for path in ("/api/v1/plan", "/api/v1/apply"):
            status, answer = await api.call("POST", path, json=body)
            found = answer["error"]["details"]["problems"] if status == 400 else []
            assert {one["path"] for one in found} == refused, (path, answer)
            assert (status == 400) is bool(refused)


async def test_plan_and_apply_warn_of_secrets_that_cannot_be_had(api: ServedApi, db: Database) -> None:
    for name in ("there", "sealed"):
        await api.call("PUT", f"/api/v1/secrets/{name}", json={"value": "v"})
    async with db.transaction() as c:  # by a key that this controller does not have
        await c.execute("update secrets set value = null, sealed = 'x', key_id = 'deadbeef' where name = 'sealed'")
    env = {"HF_TOKEN": {"secret": "typo"}, "LANG": {"secret": "there"}, "LC_ALL": {"secret": "sealed"}, "TZ": "plain"}
    one = deployment("d", env=env)
    _, applied = await api.call("PUT", "/api/v1/deployments/d", json=one)
    missing, sealed = applied["warnings"]
    assert missing.startswith("env.HF_TOKEN: secret 'typo' does not exist; set it with: gpuward secret set typo")
    assert sealed.startswith("env.LC_ALL: secret 'sealed' is encrypted with key deadbeef")
    told = [f"d: {line}" for line in (missing, sealed)]
    assert (await plan(api, one))["warnings"] == told
    assert (await together(api, one, deployment("e")))[1]["warnings"] == told
    _, seen = await api.call("POST", PLAN, role="viewer", json={"manifests": [one]})
    assert seen["warnings"] == [], "which secrets there are is not for viewers"
