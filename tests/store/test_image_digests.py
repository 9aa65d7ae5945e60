"""The digest of a revision: the first that ran stays, for all its replicas and restarts; a new revision has none."""

import asyncio
from pathlib import Path
from typing import Any

from controller.store.core.database import Database
from controller.store.deployments.processes import SessionReport, write_reports
from controller.store.migrations import versions
from controller.store.views.deployments import deployment_by_name, revisions_of
from controller.store.views.instances import instance_by_id
from rig.agent_messages import process
from schemas.wire import ProcessReport
from support.database.ledger import Host, add_deployment, add_host, add_instance, claim, rows

OLD, NEW = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
CONTAINER: dict[str, Any] = {"engine": "custom", "command": ["x"], "runtime": "docker", "image": "own/one"}


async def set_up(db: Database, *instances: str) -> Host:
    host = await add_host(db, "w", gpus=1, gib=400)
    uid = await add_deployment(db, "d", **CONTAINER)
    for name in instances:
        await add_instance(db, uid, name, phase="starting", epoch=1)
        await claim(db, host.gpus[0], name, 1024)
    return host


async def write(db: Database, host: Host, *reports: ProcessReport) -> None:
    async with db.transaction() as c:
        await write_reports(c, [SessionReport(host.id, 1, report) for report in reports])


async def kept(db: Database) -> object:
    return (await rows(db, "select image_digest from revisions"))[0]["image_digest"]


async def told(db: Database) -> list[str]:
    """The messages of events of differing images."""
    return [row["message"] for row in await rows(db, "select message from events where reason = 'image_differs'")]


def ran(instance: str, seq: int, digest: str, repository: str | None = "own/one") -> ProcessReport:
    return process(instance, "running", seq=seq, ready=True, image_digest=digest, image_repository=repository)


async def test_the_first_digest_that_runs_is_kept(migrated: Database) -> None:
    host = await set_up(migrated, "i", "j")
    await write(migrated, host, process("i", "starting", seq=1, image_digest=OLD))
    assert await kept(migrated) is None, "it has not shown yet that it runs"
    await write(migrated, host, process("i", "running", seq=2, image_digest=OLD))
    assert await kept(migrated) == OLD
    await write(migrated, host, process("j", "running", seq=3, image_digest=NEW))
    assert await kept(migrated) == OLD
    async with migrated.transaction() as connection:
        found = {name: (await instance_by_id(connection, name)).status.image_digest for name in ("i", "j")}
        assert found == {"i": OLD, "j": NEW}, "what runs is shown, even where it is another one"
        assert (await deployment_by_name(connection, "d")).status.image_digest == OLD
        assert [one.image_digest for one in (await revisions_of(connection, "d")).items] == [OLD]


async def test_what_never_ran_is_not_kept(migrated: Database) -> None:
    host = await set_up(migrated, "i", "j", "k")
    crashed = process("i", "exited", seq=1, reason="exit", exit_code=1, image_digest=OLD)
    await write(migrated, host, crashed, process("j", "running", seq=2, image_digest="latest"))
    assert await kept(migrated) is None
    await write(migrated, host, process("k", "exited", seq=3, reason="exit", exit_code=0, image_digest=NEW))
    assert await kept(migrated) == NEW, "a short task has worked"


async def test_a_stray_decides_nothing(migrated: Database) -> None:
    host = await set_up(migrated, "i")
    async with migrated.transaction() as connection:
        await connection.execute("delete from claims")
    await write(migrated, host, process("i", "running", seq=1, image_digest=OLD))
    assert await kept(migrated) is None


async def test_two_hubs_at_once_keep_one(migrated: Database) -> None:
    host = await set_up(migrated, *(f"i{n}" for n in range(8)))
    reports = [process(f"i{n}", "running", seq=n + 1, image_digest=(OLD, NEW)[n % 2]) for n in range(8)]
    await asyncio.gather(*(write(migrated, host, report) for report in reports))
    first = await kept(migrated)
    assert first in (OLD, NEW)
    await asyncio.gather(*(write(migrated, host, report) for report in reports))
    assert await kept(migrated) == first


async def test_a_later_report_without_a_digest_takes_none_away(migrated: Database) -> None:
    host = await set_up(migrated, "i")
    await write(migrated, host, process("i", "running", seq=1, image_digest=OLD))
    await write(migrated, host, process("i", "unhealthy", seq=2))
    assert (await rows(migrated, "select image_digest from processes"))[0]["image_digest"] == OLD


async def test_each_repository_has_a_digest_of_its_own(migrated: Database) -> None:
    host = await set_up(migrated, "i", "j")
    await write(migrated, host, ran("i", 1, OLD, "docker.io/library/one"))
    await write(migrated, host, ran("j", 2, NEW, "mirror:5000/one"))
    found = (await rows(migrated, "select image_digest, image_digests from revisions"))[0]
    assert found["image_digests"] == {"one": OLD, "mirror:5000/one": NEW}
    assert found["image_digest"] == NEW, "the one that was kept last"
    assert await told(migrated) == []


async def test_a_replica_on_another_digest_is_told_once(migrated: Database) -> None:
    host = await set_up(migrated, "i", "j")
    await write(migrated, host, *(process(n, "starting", seq=1, image_digest=OLD) for n in ("i", "j")))
    await write(migrated, host, ran("i", 2, OLD), ran("j", 3, NEW))
    message = f"j runs {NEW} of own/one, but revision 1 keeps {OLD}, which later starts use"
    assert await told(migrated) == [message]
    await write(migrated, host, process("j", "unhealthy", seq=4, ready=True, image_digest=NEW), ran("j", 5, NEW))
    assert await told(migrated) == [message], "each start once"
    event = (await rows(migrated, "select objects, evidence from events where reason = 'image_differs'"))[0]
    assert [one.partition(":")[0] for one in event["objects"]] == ["deployment", "instance"]
    assert (event["evidence"]["digest"], event["evidence"]["kept"]) == (NEW, OLD)


async def test_a_digest_of_an_earlier_version_stays_beside_those_of_this_one(migrated: Database) -> None:
    host = await set_up(migrated, "i", "j")
    await write(migrated, host, ran("i", 1, OLD, None))
    await write(migrated, host, ran("j", 2, NEW))
    assert (await rows(migrated, "select image_digests from revisions"))[0]["image_digests"] == {
        "": OLD,
        "own/one": NEW,
    }


async def test_an_upgrade_takes_over_digests_without_their_repository(migrated: Database) -> None:
    await set_up(migrated, "i")
    file = Path(versions.__path__[0]) / "0019_image_repositories.sql"
    async with migrated.transaction() as connection:
        await connection.execute("update revisions set image_digest = $1", OLD)
        await connection.execute(file.read_text().split("--;;")[-1])
    assert (await rows(migrated, "select image_digests from revisions"))[0]["image_digests"] == {"": OLD}
