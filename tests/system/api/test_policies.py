"""Policies over HTTP: status, events, refusals, and their part in a plan."""

from typing import Any

from controller.store.core.database import Database
from support import api_calls
from support.api_calls import plan, plan_problems, problems
from support.database.ledger import add_host, rows
from support.leading.served_api import ServedApi

P = "/api/v1/policies"
D = "/api/v1/deployments"
SPEC = {"min_gpu_utilization": 50, "time_window": "1m"}
INLINE = {"min_gpu_utilization": 10, "time_window": 300}
WATCHED = {"engine": "simulated", "resources": {"gpus": 1}}


def policy(name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "UtilizationPolicy", "name": name, **SPEC, **fields}


def deployment(name: str, **fields: Any) -> dict[str, Any]:
    return api_calls.deployment(name, **{**WATCHED, **fields})


async def test_a_policy_from_apply_to_delete(api: ServedApi) -> None:
    _, view = await api.call("PUT", f"{P}/p", json=SPEC)
    assert view["spec"] == {
        "min_gpu_utilization": 50, "time_window": 60, "gpus": "all", "action": "stop", "grace_period": 0,
        "min_coverage": 0.8, "dry_run": False, "ignore_requests": False, "webhook": None, "default": False,
    }  # fmt: skip
    await api.call("PUT", f"{P}/p", json=policy("p", default=True))
    await api.call("PUT", f"{D}/a", json=WATCHED)
    assert (await api.get(P))["items"][0]["status"] == {
        "watches": {"deployments": 1, "instances": 0}, "verdicts": {"idle": 0, "busy": 0, "unknown": 0},
        "actions": 0, "would_have_acted": 0, "gpu_seconds_freed": 0.0,
    }  # fmt: skip
    deployed = await api.get(f"{D}/a")
    effective, conditions = deployed["status"]["policy"], deployed["status"]["conditions"]
    assert (effective["origin"], effective["name"], effective["generation"]) == ("default", "p", 2)
    (idle,) = [one for one in conditions if one["type"] == "Idle"]
    assert (idle["status"], idle["reason"]) == ("unknown", "not_running")
    by_name = await reasons(api, "policy/p")
    assert by_name == await reasons(api, f"policy:{view['uid']}") == ["policy_changed", "policy_created"]
    assert (await api.call("DELETE", f"{P}/p"))[0] == 200
    assert (await api.get(f"{D}/a"))["status"]["policy"] is None
    assert await reasons(api, f"deployment:{deployed['uid']}") == ["policy_deleted", "applied"]


async def reasons(api: ServedApi, about: str) -> list[str]:
    """The reasons of an object's events, newest first."""
    return [event["reason"] for event in (await api.get(f"/api/v1/events?object={about}"))["items"]]


async def test_refused_policies_name_the_field(api: ServedApi, db: Database) -> None:
    assert "choose another name" in (await problems(api, "PUT", f"{P}/none", SPEC))["name"]
    assert (
        "remove the policy instead"
        in (await problems(api, "PUT", f"{P}/p", {**SPEC, "min_gpu_utilization": 0}))["min_gpu_utilization"]
    )
    assert "at most 2h" in (await problems(api, "PUT", f"{P}/p", {**SPEC, "time_window": "3h"}))["time_window"]
    inline = {**WATCHED, "utilization_policy": {**SPEC, "time_window": "3h"}}
    assert "at most 2h" in (await problems(api, "PUT", f"{D}/a", inline))["utilization_policy.time_window"]
    hook = {**SPEC, "webhook": "https://example.com"}
    assert "gpuward secret set webhook" in (await problems(api, "PUT", f"{P}/p", hook))["webhook.secret"]
    named = {**WATCHED, "utilization_policy": "p"}
    assert "no policy is named 'p'" in (await problems(api, "PUT", f"{D}/a", named))["utilization_policy"]
    assert await rows(db, "select 1 from policies union all select 1 from deployments") == []
    await api.call("PUT", f"{P}/p", json=SPEC)
    await api.call("PUT", f"{D}/a", json=named)
    status, answer = await api.call("DELETE", f"{P}/p")
    assert (status, answer["error"]["code"]) == (409, "in_use")


async def test_a_plan_counts_its_policies_as_applied(api: ServedApi, db: Database) -> None:
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


async def test_a_plan_and_an_apply_show_the_same_effective_policy(api: ServedApi) -> None:
    await api.call("PUT", f"{P}/p", json={**SPEC, "default": True})
    await api.call("PUT", f"{P}/q", json={**SPEC, "time_window": "5m"})
    for own in (None, "p", "q", "none", INLINE):
        for gpus in (0, 1, "auto"):
            if gpus == 0 and own not in (None, "none"):
                continue  # refused by the schema
            fields = {"utilization_policy": own, "resources": {"gpus": gpus}}
            planned = (await plan(api, deployment("a", **fields)))["policies"].get("a")
            applied = (await api.call("PUT", f"{D}/a", json={**WATCHED, **fields}))[1]["status"]["policy"]
            assert planned == (applied and {key: applied[key] for key in ("origin", "name", "spec")}), fields


async def test_a_plan_refuses_what_an_apply_refuses(api: ServedApi) -> None:
    assert (await plan_problems(api, deployment("a", utilization_policy="p"))).keys() == {"utilization_policy"}
    assert (await plan_problems(api, policy("p", default=True), policy("q", default=True))).keys() == {
        "[0].default",
        "[1].default",
    }
    await api.call("PUT", f"{P}/present", json={**SPEC, "default": True})
    assert "'present' is the default" in (await plan_problems(api, policy("p", default=True)))["default"]
    found = await plan_problems(
        api,
        policy("p", time_window="3h"),
        deployment("a", utilization_policy={**INLINE, "webhook": "https://example.com"}),
        deployment("b", utilization_policy="q"),
        deployment("c", utilization_policy="p"),
    )
    assert found.keys() == {"[0].time_window", "[1].utilization_policy.webhook.secret", "[2].utilization_policy"}
    assert await api.get(P + "/present")


LOW = {**SPEC, "min_coverage": 0.3}  # accepted by earlier versions
ACTS = "min_coverage: 0.3 acts as 0.5"


async def test_a_new_or_changed_share_below_half_is_refused_everywhere(api: ServedApi, db: Database) -> None:
    inline = {**WATCHED, "utilization_policy": LOW}
    wanted = "must be 0.5 to 1, got 0.3"
    assert wanted in (await problems(api, "PUT", f"{P}/p", LOW))["min_coverage"]
    assert wanted in (await problems(api, "PUT", f"{D}/a", inline))["utilization_policy.min_coverage"]
    assert wanted in (await plan_problems(api, policy("p", min_coverage=0.3)))["min_coverage"]
    both = {"manifests": [policy("p"), deployment("a", utilization_policy=LOW)]}
    assert wanted in (await problems(api, "POST", "/api/v1/apply", both))["[1].utilization_policy.min_coverage"]
    assert await rows(db, "select 1 from policies union all select 1 from deployments") == []
    for share in (0.5, 0.8, 1):
        assert (await api.call("PUT", f"{P}/p", json={**SPEC, "min_coverage": share}))[0] in (200, 201)
    assert wanted in (await problems(api, "PUT", f"{P}/p", LOW))["min_coverage"]


async def test_a_stored_share_below_half_is_kept_shown_with_a_warning_and_may_be_raised(
    api: ServedApi, db: Database
) -> None:
    await api.call("PUT", f"{P}/p", json=SPEC)
    await api.call("PUT", f"{D}/a", json={**WATCHED, "utilization_policy": SPEC})
    async with db.transaction() as connection:  # as an earlier version wrote it
        await connection.execute("update policies set spec = spec || '{\"min_coverage\": 0.3}'")
        await connection.execute(
            "update deployments set spec = jsonb_set(spec, '{utilization_policy,min_coverage}', '0.3')"
        )
    assert ACTS in (await api.get(f"{P}/p"))["warnings"][0]
    assert (await api.get(f"{P}/p"))["spec"]["min_coverage"] == 0.3
    assert (await api.get(f"{D}/a"))["status"]["policy"]["spec"]["min_coverage"] == 0.3
    changed = [policy("p", min_coverage=0.3, time_window="2m"), deployment("a", utilization_policy=LOW)]
    planned = await plan(api, *changed)
    assert sum(ACTS in line for line in planned["warnings"]) == 2, planned["warnings"]
    _, applied = await api.call("POST", "/api/v1/apply", json={"manifests": changed})
    assert [one["outcome"] for one in applied["items"]] == ["updated", "unchanged"]
    assert sum(ACTS in line for line in applied["warnings"]) == 2
    _, view = await api.call("PUT", f"{D}/a", json={**WATCHED, "priority": 5, "utilization_policy": LOW})
    assert ACTS in view["warnings"][0]
    for share in (0.31, 0.29):
        assert "min_coverage" in await problems(api, "PUT", f"{P}/p", {**SPEC, "min_coverage": share})
    assert (await api.call("PUT", f"{P}/p", json={**SPEC, "min_coverage": 0.6}))[1]["warnings"] == []
    assert "min_coverage" in await problems(api, "PUT", f"{P}/p", LOW)
