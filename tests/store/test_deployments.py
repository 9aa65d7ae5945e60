"""Apply, delete, stop and start: what each writes, notifies and clears."""

import asyncio
from typing import Any

import asyncpg
import pytest

from controller.store.core.database import Database
from controller.store.core.events import CHANNEL
from controller.store.core.refusals import GenerationConflictError, NotFoundError
from controller.store.deployments import verbs
from controller.store.deployments.revisions import KEPT
from controller.store.views.deployments import deployment_by_name
from schemas.api.deployments import DeploymentView
from schemas.manifest.deployment import DeploymentSpec
from support.builders.apply import apply_spec
from support.database.ledger import rows


def spec(**fields: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate({"engine": "simulated", **fields})


async def read(db: Database, name: str = "a") -> DeploymentView:
    async with db.snapshot() as connection:
        return await deployment_by_name(connection, name)


async def limit(db: Database, uid: str, source: str, replicas: int = 0) -> None:
    async with db.transaction() as connection:
        query = "insert into intents (deployment_uid, source, max_replicas) values ($1::text::uuid, $2, $3)"
        await connection.execute(query, uid, source, replicas)


async def reasons(db: Database) -> list[str]:
    return [row["reason"] for row in await rows(db, "select reason from events order by id")]


async def test_an_apply_creates_and_repeating_it_changes_nothing(migrated: Database) -> None:
    first = await apply_spec(migrated, "a", spec(replicas=2))
    before = await rows(migrated, "select * from deployments")
    second = await apply_spec(migrated, "a", spec(replicas=2))
    assert (first.outcome, second.outcome) == ("created", "unchanged")
    assert first.view.uid == second.view.uid
    assert second.view.generation == 1
    assert await rows(migrated, "select * from deployments") == before
    assert await reasons(migrated) == ["applied"]
    assert len(await rows(migrated, "select * from revisions")) == 1


@pytest.mark.parametrize(
    ("changed", "outcome", "revision"),
    [
        ({"replicas": 3}, "updated", 1),
        ({"priority": 5}, "updated", 1),
        ({"labels": {"a": "b"}}, "updated", 1),
        ({"env": {"A": "b"}}, "replaced", 2),
        ({"resources": {"gpus": 2}, "replicas": 3}, "replaced", 2),
    ],
)
async def test_only_what_running_instances_feel_makes_a_revision(
    migrated: Database, changed: dict[str, Any], outcome: str, revision: int
) -> None:
    await apply_spec(migrated, "a", spec())
    applied = await apply_spec(migrated, "a", spec(**changed))
    assert applied.outcome == outcome
    assert applied.view.generation == 2
    assert applied.view.status.revision == revision
    assert applied.view.spec == spec(**changed)
    kept = await rows(migrated, "select generation, spec from revisions order by generation")
    assert [row["generation"] for row in kept] == [1, 2][:revision]
    assert DeploymentSpec.model_validate(kept[0]["spec"]) == spec()


async def test_an_unchanged_apply_clears_no_limit_and_a_changed_one_clears_all_but_the_autoscalers(
    migrated: Database,
) -> None:
    uid = (await apply_spec(migrated, "a", spec(replicas=4))).view.uid
    await verbs.stop(migrated, "a")
    await limit(migrated, uid, "policy")
    await limit(migrated, uid, "autoscaler", 3)
    unchanged = await apply_spec(migrated, "a", spec(replicas=4))
    assert {intent.source for intent in unchanged.view.status.intents} == {"user", "policy", "autoscaler"}
    assert unchanged.view.status.wanted == 0
    changed = await apply_spec(migrated, "a", spec(replicas=5))
    assert {intent.source for intent in changed.view.status.intents} == {"autoscaler"}
    assert changed.view.status.wanted == 5, "the autoscaler has no say where the number is fixed"


async def test_stop_and_start_write_one_event_each(migrated: Database) -> None:
    await apply_spec(migrated, "a", spec(replicas=2))
    for _ in range(2):
        assert (await verbs.stop(migrated, "a")).status.wanted == 0
    await limit(migrated, (await read(migrated)).uid, "policy")
    for _ in range(2):
        assert (await verbs.start(migrated, "a")).status.wanted == 2
    assert await reasons(migrated) == ["applied", "stopped", "started"]


async def test_scaling_is_a_change_in_place(migrated: Database) -> None:
    await apply_spec(migrated, "a", spec(replicas=2))
    view = await verbs.scale(migrated, "a", 5, 5)
    assert (view.spec.replicas, view.generation, view.status.revision) == (5, 2, 1)
    assert (await verbs.scale(migrated, "a", 5, 5)).generation == 2
    assert await reasons(migrated) == ["applied", "scaled"]


async def test_a_deleted_name_is_free_at_once(migrated: Database) -> None:
    old = (await apply_spec(migrated, "a", spec())).view.uid
    gone = await verbs.delete(migrated, "a")
    assert gone.deleted_at is not None
    assert gone.status.phase == "deleting"
    assert (await verbs.delete(migrated, "a")).deleted_at == gone.deleted_at
    new = await apply_spec(migrated, "a", spec())
    assert new.outcome == "created"
    assert new.view.uid != old
    assert (await read(migrated)).uid == new.view.uid
    assert await reasons(migrated) == ["applied", "deleted", "applied"]


async def test_unknown_names_are_refused_with_the_command_that_lists_them(migrated: Database) -> None:
    for act in (verbs.stop, verbs.start, verbs.delete):
        with pytest.raises(NotFoundError, match="no deployment is named 'x'"):
            await act(migrated, "x")
    with pytest.raises(NotFoundError):
        await verbs.scale(migrated, "x", 1, 1)


async def test_a_lost_update_is_refused(migrated: Database) -> None:
    with pytest.raises(GenerationConflictError, match="does not exist"):
        await apply_spec(migrated, "a", spec(), if_match=1)
    await apply_spec(migrated, "a", spec())
    await apply_spec(migrated, "a", spec(replicas=2), if_match=1)
    with pytest.raises(GenerationConflictError, match="at generation 2, not 1"):
        await apply_spec(migrated, "a", spec(replicas=3), if_match=1)
    with pytest.raises(GenerationConflictError):
        await verbs.scale(migrated, "a", 3, 3, if_match=1)
    assert (await read(migrated)).spec.replicas == 2
    with pytest.raises(GenerationConflictError, match="at generation 2, not 1"):
        await verbs.delete(migrated, "a", if_match=1)
    assert (await read(migrated)).deleted_at is None
    assert (await verbs.delete(migrated, "a", if_match=2)).deleted_at is not None


async def test_concurrent_creations_of_one_name_both_succeed(migrated: Database) -> None:
    applied = await asyncio.gather(*(apply_spec(migrated, "a", spec(replicas=n)) for n in range(1, 7)))
    assert sorted(one.outcome for one in applied) == ["created"] + ["updated"] * 5
    assert len({one.view.uid for one in applied}) == 1
    assert sorted(one.view.generation for one in applied) == [1, 2, 3, 4, 5, 6]
    newest = max(applied, key=lambda one: one.view.generation).view
    assert (await read(migrated)).spec == newest.spec


async def test_of_a_storm_of_applies_the_last_generation_wins(migrated: Database) -> None:
    """Each changes what processes run with, so each makes a revision, of which history keeps some."""
    await apply_spec(migrated, "a", spec(args={"memory": "1GiB"}))
    changes = [spec(args={"memory": f"{n}GiB"}) for n in range(2, 42)]
    applied = await asyncio.gather(*(apply_spec(migrated, "a", one) for one in changes))
    assert sorted(one.view.generation for one in applied) == list(range(2, 42))
    last = max(applied, key=lambda one: one.view.generation).view
    now = await read(migrated)
    assert (now.generation, now.spec) == (41, last.spec)
    (newest,) = await rows(migrated, "select generation, spec from revisions order by generation desc limit 1")
    assert newest["generation"] == 41
    assert DeploymentSpec.model_validate(newest["spec"]) == last.spec
    assert await rows(migrated, "select revision from deployments") == [{"revision": 41}]
    kept = await rows(migrated, "select generation from revisions order by applied_at desc")
    assert [one["generation"] for one in kept] == list(range(41, 41 - KEPT, -1)), "the history has no gaps"


async def test_a_clock_that_steps_back_leaves_no_gap_in_the_history(migrated: Database) -> None:
    await apply_spec(migrated, "a", spec(args={"memory": "1GiB"}))
    await rows(migrated, "update revisions set applied_at = now() + interval '1 hour' returning 1")
    for n in range(2, KEPT + 6):
        await apply_spec(migrated, "a", spec(args={"memory": f"{n}GiB"}))
    kept = await rows(migrated, "select generation from revisions order by applied_at desc")
    assert [one["generation"] for one in kept] == list(range(KEPT + 5, 5, -1))


async def test_every_change_wakes_with_its_commit(migrated: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    def hear(_connection: Any, _pid: int, _channel: str, payload: str) -> None:
        heard.put_nowait(payload)

    listening: asyncpg.Connection[Any] = await migrated.listen_connection()
    try:
        await listening.add_listener(CHANNEL, hear)
        uid = (await apply_spec(migrated, "a", spec())).view.uid
        await apply_spec(migrated, "a", spec())  # unchanged: silent
        await verbs.stop(migrated, "a")
        await verbs.start(migrated, "a")
        await verbs.scale(migrated, "a", 3, 3)
        await verbs.delete(migrated, "a")
        async with asyncio.timeout(10):
            payloads = [await heard.get() for _ in range(6)]
        assert payloads[:4] == [f"deployment {uid}"] * 4
        assert payloads[4].startswith(f"gone {uid}@"), "with the time of its tombstone"
        assert payloads[5] == f"deployment {uid}"
        assert heard.empty()
    finally:
        await listening.close()
