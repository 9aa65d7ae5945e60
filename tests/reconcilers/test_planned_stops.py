"""A plan names what policies would stop at once: just what the reconciler's next step stops after the apply."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.api.dry_run import allowances, policy_stops
from controller.store.core.database import Database
from support.api_calls import deployment, plan
from support.database.ledger import add_instance, rows
from support.database.policy_ledger import STOP_IDLE, PolicyLedger, settle, steady
from support.database.truncated import EMPTY
from support.leading.served_api import ServedApi, served
from support.profiles import DAILY

WORLDS = 20 if DAILY else 300
GPUS = {"resources": {"gpus": 1}}
# How the replicas of a deployment are used: values of samples by age, and requests.
USES: dict[str, dict[float, float]] = {
    "idle": steady(0.0, to=400),
    "busy": steady(90.0, to=400),
    "a little": steady(20.0, to=400),
    "used a minute ago": {**steady(0.0, to=400), 81.0: 90.0},
    "used five minutes ago": {**steady(0.0, to=400), 301.0: 90.0},
    "half read": {age: 0.0 for n, age in enumerate(steady(0.0, to=400)) if n % 2},
    "silent": steady(0.0, newest=100, to=400),
    "unread": {},
}


@pytest.fixture
async def api(db: Database) -> AsyncIterator[ServedApi]:
    async with served(db) as found:
        yield found


@pytest.fixture
async def world(db: Database) -> PolicyLedger:
    return await PolicyLedger.make(db)


def rule(name: str = "p", **fields: Any) -> dict[str, Any]:
    return {"kind": "UtilizationPolicy", "name": name, **STOP_IDLE, **fields}


async def caps(world: PolicyLedger) -> dict[str, int]:
    """The policies' limits, by deployment."""
    query = "select d.name, i.max_replicas from intents i join deployments d on d.uid = i.deployment_uid"
    found = await rows(world.db, f"{query} where i.source = 'policy'")
    return {row["name"]: row["max_replicas"] for row in found}


async def stops(api: ServedApi, *manifests: dict[str, Any], role: str = "operator") -> dict[str, Any]:
    status, body = await api.call("POST", "/api/v1/plan/policies", role=role, json={"manifests": list(manifests)})
    assert status == 200, body
    return dict(body)


def named(body: dict[str, Any], *actions: str) -> dict[str, int | None]:
    return {one["deployment"]: one["replicas"] for one in body["items"] if one["action"] in actions}


async def apply(api: ServedApi, *manifests: dict[str, Any]) -> None:
    status, body = await api.call("POST", "/api/v1/apply", json={"manifests": list(manifests)})
    assert status == 200, body


async def test_a_new_default_policy_names_what_it_stops_and_what_is_unknown(
    world: PolicyLedger, api: ServedApi
) -> None:
    for name, replicas in (("idle", 2), ("busy", 1), ("unread", 1), ("declined", 1), ("young", 1)):
        policy = "none" if name == "declined" else None
        await world.deployment(name, replicas=replicas, utilization_policy=policy)
    await world.idle("idle-0", "idle-1", "declined-0", "young-0")
    await world.idle("busy-0", value=95)
    await world.write("update instances set running_since = now() - interval '20 s' where id = 'young-0'")
    body = await stops(api, rule(default=True))
    assert (body["stop"], body["scale_down"], body["unknown"]) == (1, 0, 1)
    assert [(one["deployment"], one["action"]) for one in body["items"]] == [("idle", "stop"), ("unread", "unknown")]
    assert "below 50 % since" in body["items"][0]["message"]
    assert (await plan(api, rule(default=True)))["policy_stops"] == body
    assert await stops(api, rule(default=True), role="viewer") == body
    await apply(api, rule(default=True))
    assert (await stops(api, rule(default=True)))["items"] == [], "an unchanged policy stops nothing new"
    await settle(await world.leader())
    assert await caps(world) == {"idle": 0}


@pytest.mark.parametrize(
    ("today", "manifests", "expected"),
    [
        (None, [rule(default=True, action="scale_down")], {"d": 1}),
        (None, [rule(default=True, action="notify")], {}),
        (None, [rule(default=True, dry_run=True)], {}),
        (None, [rule(default=False)], {}),
        (None, [rule(default=True), deployment("d", utilization_policy="none", replicas=2, **GPUS)], {}),
        (None, [rule(), deployment("d", utilization_policy="p", replicas=2, **GPUS)], {"d": 0}),
        (None, [deployment("d", utilization_policy=STOP_IDLE, replicas=2, **GPUS)], {"d": 0}),
        (None, [deployment("d", utilization_policy=STOP_IDLE, replicas=3, **GPUS)], {}),
        (None, [deployment("d", utilization_policy=STOP_IDLE, replicas=2, env={"LANG": "C"}, **GPUS)], {"d": 0}),
        ({"dry_run": True}, [rule(default=True)], {"d": 0}),
        ({"action": "scale_down"}, [rule(default=True)], {"d": 0}),
        ({"min_gpu_utilization": 30}, [rule(default=True)], {}),
        ({"time_window": "1h"}, [rule(default=True)], {"d": 0}),
        ({}, [rule(default=True)], {}),
        ({}, [rule(default=True, webhook=None), rule("other", time_window="30s")], {}),
        ({"dry_run": True}, [rule(default=False), rule("other", default=True)], {"d": 0}),
    ],
)
async def test_only_what_the_change_stops_beyond_todays_policies_is_named(
    world: PolicyLedger, api: ServedApi, today: Any, manifests: list[dict[str, Any]], expected: dict[str, int]
) -> None:
    if today is not None:
        await world.policy("p", default=True, **today)
    await world.deployment("d", replicas=2, utilization_policy=None)
    await world.idle("d-0", "d-1")
    assert named(await stops(api, *manifests), "stop", "scale_down") == expected


async def test_what_a_user_keeps_awake_or_has_just_started_is_not_named(world: PolicyLedger, api: ServedApi) -> None:
    uid = await world.deployment("awake", utilization_policy=None)
    await world.write(
        "insert into wakes (deployment_uid, source, expires_at) values ($1, 'user', now() + interval '1 h')", uid
    )
    await world.policy("p")
    await world.deployment("started", utilization_policy="p")
    await world.idle("awake-0", "started-0")
    leader = await world.leader()
    await settle(leader)
    assert await caps(world) == {"started": 0}
    changed = deployment("started", utilization_policy="p", priority=7, **GPUS)
    body = await stops(api, rule("q", default=True), changed)
    assert body["items"] == [], "the change starts it, and its window begins then"
    await apply(api, rule("q", default=True), changed)
    await settle(leader)
    assert await caps(world) == {}


async def test_long_lists_are_counted(world: PolicyLedger, api: ServedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.api.dry_run.policy_stops.MOST_NAMED", 2)
    monkeypatch.setattr("controller.api.dry_run.policy_stops._DEPLOYMENTS_AT_ONCE", 2)
    for name in "abcde":
        await world.deployment(name, utilization_policy=None)
        await world.idle(f"{name}-0")
    body = await stops(api, rule(default=True))
    assert (body["stop"], list(named(body, "stop"))) == (5, ["a", "b"])


async def test_what_a_plan_may_not_read_is_unknown(
    world: PolicyLedger, api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The samples of one deployment are more than it may read; those of others whose use shows soon are not."""
    monkeypatch.setattr(allowances, "MAX_SAMPLES", 20)
    for name, replicas in (("big", 3), ("busy", 1)):
        await world.deployment(name, replicas=replicas, utilization_policy=None)
    await world.idle("big-0", "big-1", "big-2")
    await world.idle("busy-0", value=90)
    body = await stops(api, rule(default=True))
    assert (body["stop"], body["unknown"], list(named(body, "unknown"))) == (0, 1, ["big"])


async def test_what_takes_too_long_is_unknown_and_the_rest_of_the_plan_is_there(
    world: PolicyLedger, api: ServedApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_stops, "JUDGE_S", 1.0)
    await world.deployment("d", replicas=1, utilization_policy=None)
    await world.idle("d-0")
    async with api.app[allowances.JUDGING]:  # as another plan holds it
        async with asyncio.timeout(10):
            body = await plan(api, rule(default=True))
    assert body["policy_changes"] == {"p": "create"}
    assert named(body["policy_stops"], "unknown") == {"d": None}
    assert named(await stops(api, rule(default=True)), "stop") == {"d": 0}


# Random worlds


class Worlds:
    """Makes deployments, policies and a file that changes some of them."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - not a secret

    def policy(self, mild: float = 0.0) -> dict[str, Any]:
        """`mild`: how likely it is one that stops nothing."""
        draw = self.draw
        return {
            "min_gpu_utilization": draw.choice([10, 50]),
            "time_window": draw.choice(["60s", "2m", "5m"]),
            "gpus": draw.choice(["all", "any", "mean"]),
            "action": draw.choice(["stop", "scale_down"]),
            "dry_run": draw.random() < mild,
            "ignore_requests": draw.random() < 0.3,
            "min_coverage": draw.choice([0.5, 0.8]),
        }

    def own(self) -> Any:
        return self.draw.choice([None, None, None, "none", "a", "b", self.policy(0.5)])

    async def make(self, world: PolicyLedger) -> dict[str, dict[str, Any]]:
        """The deployments, by name."""
        self.default = self.draw.choice(["a", "b", "", ""])
        for name in "ab":
            await world.policy(name, default=name == self.default, **self.policy(0.6))
        found = {}
        for name in ("d1", "d2", "d3", "d4"):
            fields = {"utilization_policy": self.own(), "replicas": self.draw.randint(1, 2), **GPUS}
            await world.deployment(name, **fields)
            found[name] = fields
            used = list(USES) if self.draw.random() < 0.3 else ["idle", "idle", "idle", "a little"]
            for n in range(fields["replicas"]):
                if values := USES[self.draw.choice(used)]:
                    await world.samples(f"{name}-{n}", values, requests=self.draw.choice([*[0] * 8, 1, None]))
        if self.draw.random() < 0.3:
            uid = (await rows(world.db, "select uid from deployments where name = 'd1'"))[0]["uid"]
            await add_instance(world.db, str(uid), "d1-9", phase="pending")
        return found

    def file(self, present: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        draw = self.draw
        default = draw.choice([self.default, "c"])
        written = {name for name in "abc" if draw.random() < 0.4} | {default, self.default} - {""}
        file = [rule(name, default=name == default, **self.policy(0.2)) for name in sorted(written)]
        for name, fields in present.items():
            if draw.random() < 0.3:
                changes = [{"utilization_policy": self.own()}, {"replicas": draw.randint(1, 3)}, {"priority": 3}, {}]
                file.append(deployment(name, **{**fields, **draw.choice(changes)}))
        return file or [rule("a", default=True, **self.policy())]


async def step(world: PolicyLedger) -> dict[str, int]:
    """The new limits of the next step, by deployment."""
    before = await caps(world)
    await settle(await world.leader())
    return {name: cap for name, cap in (await caps(world)).items() if before.get(name) != cap}


async def foretold(api: ServedApi, db: Database, seed: int) -> int:
    """Compares a plan with the next step in one world; returns how many deployments were to stop."""
    worlds, world = Worlds(seed), await PolicyLedger.make(db)
    present = await worlds.make(world)
    file = worlds.file(present)
    if worlds.draw.random() < 0.5:
        await step(world)  # so what today's policies stop has been stopped before
        today: dict[str, int] = {}
    else:
        today = await step(world)
        for table in ("intents", "policy_actions", "policy_verdicts"):
            await world.write(f"delete from {table}")  # noqa: S608
    body = await stops(api, *file)
    await apply(api, *file)
    after = await step(world)
    expected = {name: cap for name, cap in after.items() if name not in today or cap < today[name]}
    assert named(body, "stop", "scale_down") == expected, (seed, file)
    assert not named(body, "unknown").keys() & after.keys(), (seed, file)
    return len(expected)


async def test_a_plan_and_the_next_step_agree(db: Database, api: ServedApi) -> None:
    found = 0
    for seed in range(WORLDS):
        async with db.connection() as connection:
            await connection.execute(EMPTY + "; delete from samples; delete from policy_actions")  # noqa: S608
        found += await foretold(api, db, seed)
    assert found >= WORLDS / 4, "too few worlds in which anything stops"
