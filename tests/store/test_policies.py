"""Policies as rows: apply and delete with their events and notifications, effective policies, views."""

import asyncio
from typing import Any

import asyncpg
import pytest

from controller.store.access.secrets import put_secret
from controller.store.core.database import Database
from controller.store.core.events import CHANNEL
from controller.store.core.refusals import GenerationConflictError, InUseError, NotFoundError
from controller.store.deployments import verbs
from controller.store.policies.apply import AppliedPolicy, apply_policy, delete_policy
from controller.store.policies.effective import effective_policies
from controller.store.views.deployments import deployment_by_name
from controller.store.views.events import objects_named
from controller.store.views.instances import instance_by_id
from controller.store.views.policies import list_policies, policy_by_name
from schemas.api.deployments import DeploymentView
from schemas.api.policies import PolicyView
from schemas.api.view import to_plain
from schemas.manifest.deployment import DeploymentSpec
from schemas.manifest.policy import PolicySpec
from schemas.manifest.problems import ManifestError
from support.builders.apply import apply_spec
from support.database.ledger import add_deployment, add_instance, rows

INLINE = {"min_gpu_utilization": 10, "time_window": 300}


def policy(**fields: Any) -> PolicySpec:
    return PolicySpec.model_validate({"min_gpu_utilization": 50, "time_window": 60, **fields})


async def apply(db: Database, name: str, **fields: Any) -> AppliedPolicy:
    return await apply_policy(db, name, policy(**fields))


async def deploy(db: Database, name: str, **fields: Any) -> DeploymentView:
    spec = DeploymentSpec.model_validate({"engine": "simulated", "resources": {"gpus": 1}, **fields})
    return (await apply_spec(db, name, spec)).view


async def seen(db: Database, name: str) -> PolicyView:
    async with db.snapshot() as connection:
        return await policy_by_name(connection, name)


async def deployed(db: Database, name: str) -> DeploymentView:
    async with db.snapshot() as connection:
        return await deployment_by_name(connection, name)


async def effective(db: Database, *views: DeploymentView) -> list[str | None]:
    """The effective policy of each by name; empty for an inline one."""
    async with db.snapshot() as connection:
        found = await effective_policies(connection, [view.uid for view in views])
    return [found[view.uid].name if view.uid in found else None for view in views]


async def events(db: Database, reason: str) -> list[dict[str, Any]]:
    return await rows(db, "select * from events where reason = $1 order by id", reason)


async def refused(db: Database, name: str, **fields: Any) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        await apply(db, name, **fields)
    return {problem.path: problem.message for problem in caught.value.problems}


async def test_a_policy_is_made_changed_and_left_as_it_is(migrated: Database) -> None:
    made = await apply(migrated, "p")
    assert (made.outcome, made.view.generation, made.view.spec) == ("created", 1, policy())
    before = await rows(migrated, "select * from policies")
    assert (await apply(migrated, "p")).outcome == "unchanged"
    assert await rows(migrated, "select * from policies") == before
    changed = await apply(migrated, "p", time_window="10m", default=True)
    assert (changed.outcome, changed.view.generation, changed.view.uid) == ("updated", 2, made.view.uid)
    assert (await seen(migrated, "p")).spec == policy(time_window=600, default=True)
    (reported,) = await events(migrated, "policy_changed")
    assert reported["evidence"]["old"] == {"time_window": 60, "default": False}
    assert reported["evidence"]["new"] == {"time_window": 600, "default": True}
    assert reported["evidence"]["new_spec"]["min_gpu_utilization"] == 50
    assert reported["objects"] == [f"policy:{made.view.uid}"]
    assert len(await events(migrated, "policy_created")) == 1
    async with migrated.snapshot() as connection:
        assert await objects_named(connection, "policy", "p") == [f"policy:{made.view.uid}"]


async def test_a_stale_generation_is_refused(migrated: Database) -> None:
    await apply(migrated, "p")
    for act in (
        apply_policy(migrated, "p", policy(), if_match=2),
        apply_policy(migrated, "q", policy(), if_match=1),
        delete_policy(migrated, "p", if_match=2),
    ):
        with pytest.raises(GenerationConflictError, match=r"policy '.' "):
            await act
    assert (await apply_policy(migrated, "p", policy(dry_run=True), if_match=1)).view.generation == 2
    await delete_policy(migrated, "p", if_match=2)


async def test_which_policy_applies(migrated: Database) -> None:
    await apply(migrated, "default", default=True)
    await apply(migrated, "other")
    views = [
        await deploy(migrated, "inline", utilization_policy=INLINE),
        await deploy(migrated, "named", utilization_policy="other"),
        await deploy(migrated, "left-out"),
        await deploy(migrated, "auto", resources={"gpus": "auto"}),
        await deploy(migrated, "declined", utilization_policy="none"),
        await deploy(migrated, "without-gpus", resources={"gpus": 0}),
    ]
    assert await effective(migrated, *views) == ["", "other", "default", "default", None, None]
    origins = [view.status.policy.origin if view.status.policy else None for view in views]
    assert origins == ["inline", "named", "default", "default", None, None]
    assert [(await seen(migrated, name)).status.watches.deployments for name in ("default", "other")] == [2, 1]


# U43
async def test_a_default_comes_changes_and_goes(migrated: Database) -> None:
    view = await deploy(migrated, "a")
    assert await effective(migrated, view) == [None]
    for _ in range(2):
        await apply(migrated, "p", default=True)
        await apply(migrated, "p", default=True, min_gpu_utilization=80)
        status = (await deployed(migrated, "a")).status
        assert status.policy is not None
        assert (status.policy.name, status.policy.generation, status.policy.spec.min_gpu_utilization) == ("p", 2, 80)
        await delete_policy(migrated, "p")
        assert await effective(migrated, view) == [None]
        assert (await deployed(migrated, "a")).status.policy is None
    for reason, count in (("policy_created", 2), ("policy_changed", 2), ("policy_deleted", 2)):
        reported = await events(migrated, reason)
        assert [f"deployment:{view.uid}" in event["objects"] for event in reported] == [True] * count


async def test_there_is_one_default(migrated: Database) -> None:
    await apply(migrated, "first", default=True)
    assert "'first' is the default policy" in (await refused(migrated, "second", default=True))["default"]
    await apply(migrated, "first")
    assert (await apply(migrated, "second", default=True)).outcome == "created"


async def test_of_two_defaults_at_once_one_is_refused(migrated: Database) -> None:
    names = ["p", "q", "r"]
    results = await asyncio.gather(*(apply(migrated, n, default=True) for n in names), return_exceptions=True)
    assert sum(isinstance(result, AppliedPolicy) for result in results) == 1
    assert sum(isinstance(result, ManifestError) for result in results) == 2


async def test_a_policy_in_use_is_not_deleted(migrated: Database) -> None:
    await apply(migrated, "p")
    for name in "abcdefg":
        await deploy(migrated, name, utilization_policy="p")
    with pytest.raises(InUseError, match="named by a, b, c, d, e and 2 more"):
        await delete_policy(migrated, "p")
    for name in "abcdef":
        await verbs.delete(migrated, name)
    with pytest.raises(InUseError, match="named by g;"):
        await delete_policy(migrated, "p")
    await deploy(migrated, "g")
    assert (await delete_policy(migrated, "p")).name == "p"
    with pytest.raises(NotFoundError, match="gpuward get policies"):
        await delete_policy(migrated, "p")


async def test_a_concurrent_reference_and_delete_see_each_other(migrated: Database) -> None:
    for n in range(8):
        await apply(migrated, "p")
        await asyncio.gather(
            deploy(migrated, f"d{n}", utilization_policy="p"), delete_policy(migrated, "p"), return_exceptions=True
        )
        dangling = """select 1 from deployments d left join policies p on p.name = d.spec ->> 'utilization_policy'
                       where d.deleted_at is null and d.spec ->> 'utilization_policy' is not null and p.uid is null"""
        assert await rows(migrated, dangling) == []


async def test_references_must_exist_at_the_apply(migrated: Database) -> None:
    with pytest.raises(ManifestError, match="utilization_policy: no policy is named 'p'; apply it first"):
        await deploy(migrated, "a", utilization_policy="p")
    hook = {"url": "https://example.com", "secret": "hooks"}
    assert "gpuward secret set hooks" in (await refused(migrated, "p", webhook=hook))["webhook.secret"]
    with pytest.raises(ManifestError, match=r"utilization_policy\.webhook\.secret: no secret is named 'hooks'"):
        await deploy(migrated, "a", utilization_policy={**INLINE, "webhook": hook})
    assert await rows(migrated, "select 1 from deployments union all select 1 from policies") == []
    await put_secret(migrated, "hooks", "s3cret")
    await apply(migrated, "p", webhook=hook)
    await deploy(migrated, "a", utilization_policy={**INLINE, "webhook": hook})


# U38
async def test_a_window_longer_than_samples_are_kept_is_refused(migrated: Database) -> None:
    with pytest.raises(ManifestError, match=r"time_window: must be at most 1h, .* got 3601 s"):
        await apply_policy(migrated, "p", policy(time_window=3601), longest_window_s=3600)
    await apply_policy(migrated, "p", policy(time_window=3600), longest_window_s=3600)
    inline = DeploymentSpec.model_validate(
        {"engine": "simulated", "utilization_policy": {**INLINE, "time_window": "2h"}}
    )
    with pytest.raises(ManifestError, match=r"utilization_policy\.time_window: must be at most 1h, .* got 7200 s"):
        await apply_spec(migrated, "a", inline, longest_window_s=3600)


# U42
async def test_a_changed_window_applies_in_place_and_the_event_has_both_values(migrated: Database) -> None:
    await apply(migrated, "p")
    first = await deploy(migrated, "a", utilization_policy=INLINE)
    changes: list[Any] = [{**INLINE, "time_window": 600}, "p", None]
    for change in changes:
        view = await deploy(migrated, "a", utilization_policy=change)
        assert (view.uid, view.status.revision) == (first.uid, first.status.revision)
    reported = await events(migrated, "policy_changed")
    assert [event["objects"] for event in reported] == [[f"deployment:{first.uid}"]] * 3
    assert (reported[0]["evidence"]["old"], reported[0]["evidence"]["new"]) == (
        {"time_window": 300},
        {"time_window": 600},
    )
    assert (reported[1]["evidence"]["old"]["time_window"], reported[1]["evidence"]["new"]) == (600, "p")
    assert (reported[2]["evidence"]["old"], reported[2]["evidence"]["new"]) == ("p", None)
    await verbs.scale(migrated, "a", 3, 3)
    assert len(await events(migrated, "policy_changed")) == 3


async def test_only_affected_deployments_are_notified(migrated: Database) -> None:
    await deploy(migrated, "own", utilization_policy=INLINE)
    left = await deploy(migrated, "left")
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener: asyncpg.Connection[Any] = await migrated.listen_connection()
    await listener.add_listener(CHANNEL, lambda *arguments: heard.put_nowait(arguments[-1]))
    try:
        async with asyncio.timeout(10):
            for act in (apply(migrated, "p", default=True), apply(migrated, "p"), apply(migrated, "q")):
                await act
            await apply(migrated, "q", default=True)
            await delete_policy(migrated, "q")
            payloads = [await heard.get() for _ in range(9)]  # each time of the policy too
    finally:
        await listener.close(timeout=5)
    deployments_told = [payload for payload in payloads if not payload.startswith("policy ")]
    assert deployments_told == [f"deployment {left.uid}"] * 4


async def judge(
    db: Database, uid: str, instance: str, verdict: str, *, of: PolicyView | None = None, **more: Any
) -> None:
    """A verdict on an instance in its first epoch."""
    values = {
        "instance_id": instance, "epoch": 1, "deployment_uid": uid, "policy": of.name if of else "",
        "policy_uid": of.uid if of else None, "policy_generation": 1, "action": "stop", "dry_run": False,
        "verdict": verdict, "reason": verdict, "message": f"{instance} is {verdict}", **more,
    }  # fmt: skip
    names = ", ".join(values)
    places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    async with db.transaction() as connection:
        await connection.execute(f"insert into policy_verdicts ({names}) values ({places})", *values.values())  # noqa: S608


async def test_a_policys_status_has_what_it_watches_found_and_freed(migrated: Database) -> None:
    view = (await apply(migrated, "p", default=True)).view
    await apply(migrated, "other")
    uid = await add_deployment(migrated, "d", replicas=4)
    for n, phase in enumerate(("running", "running", "pending", "failed")):
        await add_instance(migrated, uid, f"d-{n}", phase=phase, epoch=1)
    await judge(migrated, uid, "d-0", "idle", of=view)
    await judge(migrated, uid, "d-1", "busy", of=view)
    await judge(migrated, uid, "d-2", "unknown", of=view, epoch=0)
    async with migrated.transaction() as connection:
        for action, dry_run, ended, gpus in (
            ("stop", False, "now() - interval '50 s'", 2), ("scale_down", False, "null", 0.5),
            ("notify", False, "null", 8), ("stop", True, "null", 8),
        ):  # fmt: skip
            query = f"""insert into policy_actions (at, policy, policy_uid, policy_generation, action, dry_run,
                        deployment_uid, deployment, instances, gpus, evidence, ended_at)
                        values (now() - interval '100 s', 'p', $1, 1, $2, $3, $4, 'd', '{{}}', $5, '{{}}', {ended})"""  # noqa: S608
            await connection.execute(query, view.uid, action, dry_run, uid, gpus)
    status = (await seen(migrated, "p")).status
    assert to_plain(status.watches) == {"deployments": 1, "instances": 3}
    assert to_plain(status.verdicts) == {"idle": 1, "busy": 1, "unknown": 0}, "of an earlier epoch: it says nothing"
    assert (status.actions, status.would_have_acted) == (3, 1)
    assert status.gpu_seconds_freed == pytest.approx(2 * 50 + 0.5 * 100, abs=5)
    async with migrated.snapshot() as connection:
        first = await list_policies(connection, limit=1)
        second = await list_policies(connection, limit=1, cursor=first.next)
    assert [page.items[0].name for page in (first, second)] == ["other", "p"]
    assert second.next is None
    assert first.items[0].status.actions == 0


@pytest.mark.parametrize(
    ("verdicts", "status", "reason", "message"),
    [
        ([], "unknown", "not_running", "no instance is running"),
        (["idle"], "true", "idle", "d-0 is idle"),
        (["unknown"], "unknown", "unknown", "d-0 is unknown"),
        (["idle", "idle"], "true", "idle", "2 idle; d-0: d-0 is idle"),
        (["idle", "unknown", "idle"], "unknown", "unknown", "2 idle, 1 unknown; d-1: d-1 is unknown"),
        (["unknown", "idle", "busy"], "false", "busy", "1 idle, 1 busy, 1 unknown; d-2: d-2 is busy"),
    ],
)
async def test_a_deployment_has_a_condition_idle(
    migrated: Database, verdicts: list[str], status: str, reason: str, message: str
) -> None:
    uid = await add_deployment(migrated, "d", utilization_policy=INLINE)
    for n, verdict in enumerate(verdicts):
        await add_instance(migrated, uid, f"d-{n}", phase="running", epoch=1)
        await judge(migrated, uid, f"d-{n}", verdict)
    await add_instance(migrated, uid, "leaving", phase="stopping", epoch=1)
    await judge(migrated, uid, "leaving", "busy")
    condition = (await deployed(migrated, "d")).status.conditions[-1]
    assert (condition.type, condition.status, condition.reason, condition.message) == ("Idle", status, reason, message)
    async with migrated.snapshot() as connection:
        shown = [(await instance_by_id(connection, f"d-{n}")).status.utilization for n in range(len(verdicts))]
    assert [one.verdict if one else None for one in shown] == verdicts


async def test_without_a_policy_there_is_no_condition_idle(migrated: Database) -> None:
    await deploy(migrated, "a")
    status = (await deployed(migrated, "a")).status
    assert status.policy is None
    assert "Idle" not in [condition.type for condition in status.conditions]
