"""The commits that agents report: the first of each model stays with the revision, and a new revision has none."""

import asyncio
from typing import Any

from controller.store.core.database import Database
from controller.store.deployments.processes import SessionReport, write_reports
from controller.store.deployments.verbs import pull
from controller.store.views.deployments import deployment_by_name, revisions_of
from rig.agent_messages import process
from schemas.wire import ProcessReport
from support.database.ledger import Host, add_deployment, add_host, add_instance, claim, rows

OLD, NEW = "a" * 40, "b" * 40
MODEL: dict[str, Any] = {"engine": "vllm", "model": "hf:org/model"}


async def set_up(db: Database, *instances: str) -> Host:
    host = await add_host(db, "w", gpus=1, gib=400)
    uid = await add_deployment(db, "d", **MODEL)
    for name in instances:
        await add_instance(db, uid, name, phase="starting", epoch=1)
        await claim(db, host.gpus[0], name, 1024)
    return host


async def write(db: Database, host: Host, *reports: ProcessReport) -> None:
    async with db.transaction() as c:
        await write_reports(c, [SessionReport(host.id, 1, report) for report in reports])


async def kept(db: Database) -> dict[str, str]:
    async with db.transaction() as connection:
        return (await deployment_by_name(connection, "d")).status.model_commits


def fetched(instance: str, seq: int, state: str = "starting", **commits: str) -> ProcessReport:
    told = {f"org/{name}@main": commit for name, commit in commits.items()}
    return process(instance, state, seq=seq, model_commits=told)


async def test_the_first_commit_of_each_model_stays(migrated: Database) -> None:
    host = await set_up(migrated, "i", "j")
    await write(migrated, host, fetched("i", 1, model=OLD))
    await write(migrated, host, fetched("j", 2, model=NEW, lora=NEW))
    assert await kept(migrated) == {"org/model@main": OLD, "org/lora@main": NEW}


async def test_a_process_that_runs_another_one_is_named_once(migrated: Database) -> None:
    host = await set_up(migrated, "i", "j")
    await write(migrated, host, fetched("i", 1, "running", model=OLD))
    for seq in (2, 3):
        await write(migrated, host, fetched("j", seq, "running", model=NEW))
    events = await rows(migrated, "select message from events where reason = 'model_differs'")
    assert [("j" in row["message"], OLD in row["message"], NEW in row["message"]) for row in events] == [(True,) * 3]


async def test_what_names_no_commit_is_not_kept(migrated: Database) -> None:
    host = await set_up(migrated, "i")
    told = {f"org/model@{OLD}": OLD, "org/other@main": "not a commit"}
    await write(migrated, host, process("i", "running", seq=1, model_commits=told))
    assert await kept(migrated) == {}


async def test_two_hubs_at_once_keep_one(migrated: Database) -> None:
    host = await set_up(migrated, *(f"i{n}" for n in range(8)))
    reports = [fetched(f"i{n}", n + 1, model=(OLD, NEW)[n % 2]) for n in range(8)]
    await asyncio.gather(*(write(migrated, host, report) for report in reports))
    first = await kept(migrated)
    assert set(first.values()) < {OLD, NEW}
    await asyncio.gather(*(write(migrated, host, report) for report in reports))
    assert await kept(migrated) == first


async def test_a_new_revision_has_none_and_the_old_one_keeps_its_own(migrated: Database) -> None:
    host = await set_up(migrated, "i")
    await write(migrated, host, fetched("i", 1, model=OLD))
    view = await pull(migrated, "d")
    assert (view.generation, view.status.revision, view.status.model_commits) == (2, 2, {})
    async with migrated.transaction() as connection:
        found = {one.revision: one.model_commits for one in (await revisions_of(connection, "d")).items}
    assert found == {2: {}, 1: {"org/model@main": OLD}}


async def test_a_new_revision_begins_with_the_places_that_are_held(migrated: Database) -> None:
    """A rollout by `recreate` waits for new replicas unless the deployment has grown by them."""
    await set_up(migrated, "i", "j")
    for held in (2, 1):
        await pull(migrated, "d")
        assert (await rows(migrated, "select replicas from placed_before"))[0]["replicas"] == held
        async with migrated.transaction() as connection:
            await connection.execute("delete from claims where instance_id = 'j'")
            await connection.execute("update instances set phase = 'pending' where id = 'j'")
