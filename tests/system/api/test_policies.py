"""Policies over HTTP: their lifecycle, access, and their part in a plan."""

from typing import Any

from controller.store.core.database import Database
from support.ledger import add_host, rows
from support.served import ServedApi

P = "/api/v1/policies"
D = "/api/v1/deployments"
SPEC = {"min_gpu_utilization": 50, "time_window": "1m"}
INLINE = {"min_gpu_utilization": 10, "time_window": 300}
WATCHED = {"engine": "simulated", "resources": {"gpus": 1}}


async def problems(api: ServedApi, method: str, path: str, body: Any) -> dict[str, str]:
    status, answer = await api.call(method, path, json=body)
    assert (status, answer["error"]["code"]) == (400, "invalid"), answer
    return {one["path"]: one["message"] for one in answer["error"]["details"]["problems"]}


def policy(name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "UtilizationPolicy", "name": name, **SPEC, **fields}


def deployment(name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "Deployment", "name": name, **WATCHED, **fields}


async def plan(api: ServedApi, *manifests: dict[str, Any]) -> dict[str, Any]:
    status, body = await api.call("POST", "/api/v1/plan", role="operator", json={"manifests": list(manifests)})
    assert status == 200, body
    return dict(body)


async def test_a_policys_life(api: ServedApi) -> None:
    async with api.session.put(f"{api.url}{P}/p", json=SPEC, headers=api.header("operator")) as answer:
        assert (answer.status, answer.headers["X-Gpuward-Outcome"], answer.headers["ETag"]) == (201, "created", '"1"')
        view = await answer.json()
    assert (view["kind"], view["name"], view["generation"]) == ("UtilizationPolicy", "p", 1)
    assert view["spec"] == {
        "min_gpu_utilization": 50, "time_window": 60, "gpus": "all", "action": "stop", "grace_period": 0,
        "min_coverage": 0.8, "dry_run": False, "ignore_requests": False, "webhook": None, "default": False,
    }  # fmt: skip
    for again in (view["spec"], policy("p")):
        assert (await api.call("PUT", f"{P}/p", json=again))[1]["generation"] == 1, "what was read can be sent back"
    stale = await api.call("PUT", f"{P}/p", json=policy("p", dry_run=True), headers={"If-Match": '"2"'})
    assert (stale[0], stale[1]["error"]["code"]) == (412, "generation_conflict")
    changed = await api.call("PUT", f"{P}/p", json=policy("p", default=True), headers={"If-Match": '"1"'})
    assert (changed[0], changed[1]["generation"]) == (200, 2)
    await api.call("PUT", f"{D}/a", json=WATCHED)
    assert (await api.get(P))["items"][0]["status"] == {
        "watches": {"deployments": 1, "instances": 0}, "verdicts": {"idle": 0, "busy": 0, "unknown": 0},
        "actions": 0, "would_have_acted": 0, "gpu_seconds_freed": 0.0,
    }  # fmt: skip
    shown = (await api.get(f"{D}/a"))["status"]
    assert (shown["policy"]["origin"], shown["policy"]["name"], shown["policy"]["generation"]) == ("default", "p", 2)
    (idle,) = [one for one in shown["conditions"] if one["type"] == "Idle"]
    assert (idle["status"], idle["reason"]) == ("unknown", "not_running")
    own = (await api.get("/api/v1/events?object=policy/p"))["items"]
    assert [event["reason"] for event in own] == ["policy_changed", "policy_created"]
    assert own == (await api.get(f"/api/v1/events?object=policy:{view['uid']}"))["items"]
    assert (await api.call("DELETE", f"{P}/p"))[0] == 200
    assert (await api.call("DELETE", f"{P}/p"))[1]["error"]["code"] == "not_found"
    assert (await api.get(f"{D}/a"))["status"]["policy"] is None
    events = (await api.get(f"/api/v1/events?object=deployment:{(await api.get(f'{D}/a'))['uid']}"))["items"]
    assert [event["reason"] for event in events] == ["policy_deleted", "applied"]


async def test_roles_are_those_of_deployments(api: ServedApi) -> None:
    for method, path, body, allowed in (
        ("PUT", f"{P}/p", SPEC, {"operator", "admin"}),
        ("GET", f"{P}/p", None, {"viewer", "operator", "admin"}),
        ("GET", P, None, {"viewer", "operator", "admin"}),
        ("DELETE", f"{P}/p", None, {"operator", "admin"}),
    ):
        for role in ("viewer", "inference", "operator", "admin"):
            if method == "DELETE":
                await api.call("PUT", f"{P}/p", json=SPEC)
            status, _ = await api.call(method, path, role=role, **({"json": body} if body else {}))
            assert (status != 403) == (role in allowed), (method, path, role)


async def test_refusals_name_the_field(api: ServedApi, db: Database) -> None:
    assert "lower case letters" in (await problems(api, "PUT", f"{P}/P_", SPEC))["name"]
    assert "choose another name" in (await problems(api, "PUT", f"{P}/none", SPEC))["name"]
    assert (
        "can never fire"
        in (await problems(api, "PUT", f"{P}/p", {**SPEC, "min_gpu_utilization": 0}))["min_gpu_utilization"]
    )
    assert "kept (2 h)" in (await problems(api, "PUT", f"{P}/p", {**SPEC, "time_window": "3h"}))["time_window"]
    inline = {**WATCHED, "utilization_policy": {**SPEC, "time_window": "3h"}}
    assert "kept (2 h)" in (await problems(api, "PUT", f"{D}/a", inline))["utilization_policy.time_window"]
    hook = {**SPEC, "webhook": "https://example.com"}
    assert "gpuward secret set webhook" in (await problems(api, "PUT", f"{P}/p", hook))["webhook.secret"]
    named = {**WATCHED, "utilization_policy": "p"}
    assert "no policy is named 'p'" in (await problems(api, "PUT", f"{D}/a", named))["utilization_policy"]
    assert await rows(db, "select 1 from policies union all select 1 from deployments") == []
    await api.call("PUT", f"{P}/p", json=SPEC)
    await api.call("PUT", f"{D}/a", json=named)
    status, answer = await api.call("DELETE", f"{P}/p")
    assert (status, answer["error"]["code"]) == (409, "in_use")


async def test_a_plan_takes_policies_as_applied(api: ServedApi, db: Database) -> None:
    await add_host(db, "w", gpus=8)
    await api.call("PUT", f"{P}/kept", json=SPEC)
    await api.call("PUT", f"{P}/changed", json={**SPEC, "default": True})
    body = await plan(
        api,
        deployment("inline", utilization_policy=INLINE),
        deployment("named", utilization_policy="new"),
        deployment("left-out"),
        deployment("declined", utilization_policy="none"),
        deployment("without", resources={"gpus": 0}),
        policy("changed", time_window="2m"),
        policy("new", default=True),
        policy("kept"),
    )
    assert body["policy_changes"] == {"changed": "update", "new": "create", "kept": "unchanged"}
    applying = {
        name: (one["origin"], one["name"], one["spec"]["time_window"]) for name, one in body["policies"].items()
    }
    assert applying == {
        "inline": ("inline", "", 300),
        "named": ("named", "new", 60),
        "left-out": ("default", "new", 60),
    }
    assert len(body["items"]) == 5
    assert [one["name"] for one in (await api.get(P))["items"]] == ["changed", "kept"], "nothing was written"
    alone = await plan(api, policy("only"))
    assert (alone["policy_changes"], alone["changes"], alone["items"]) == ({"only": "create"}, {}, [])


async def test_a_plan_and_an_apply_show_the_same_policy(api: ServedApi) -> None:
    await api.call("PUT", f"{P}/p", json={**SPEC, "default": True})
    await api.call("PUT", f"{P}/q", json={**SPEC, "time_window": "5m"})
    for own in (None, "p", "q", "none", INLINE):
        for gpus in (0, 1, "auto"):
            if gpus == 0 and own not in (None, "none"):
                continue  # is refused, by the schema already
            fields = {"utilization_policy": own, "resources": {"gpus": gpus}}
            planned = (await plan(api, deployment("a", **fields)))["policies"].get("a")
            applied = (await api.call("PUT", f"{D}/a", json={**WATCHED, **fields}))[1]["status"]["policy"]
            assert planned == (applied and {key: applied[key] for key in ("origin", "name", "spec")}), fields


async def test_a_plan_refuses_what_an_apply_refuses(api: ServedApi) -> None:
    async def refused(*manifests: dict[str, Any]) -> dict[str, str]:
        return await problems(api, "POST", "/api/v1/plan", {"manifests": list(manifests)})

    assert (await refused(deployment("a", utilization_policy="p"))).keys() == {"utilization_policy"}
    assert (await refused(policy("p", default=True), policy("q", default=True))).keys() == {
        "[0].default",
        "[1].default",
    }
    await api.call("PUT", f"{P}/present", json={**SPEC, "default": True})
    assert "'present' is the default" in (await refused(policy("p", default=True)))["default"]
    found = await refused(
        policy("p", time_window="3h"),
        deployment("a", utilization_policy={**INLINE, "webhook": "https://example.com"}),
        deployment("b", utilization_policy="q"),
        deployment("c", utilization_policy="p"),
    )
    assert found.keys() == {"[0].time_window", "[1].utilization_policy.webhook.secret", "[2].utilization_policy"}
    assert await api.get(P + "/present")
