"""`GET /pending`: order, place, reason and reservations of what is pending, as the placement pass has them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.api.dry_run.pending import reservations_of
from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_host, add_instance, report, rows
from support.leading.leader_term import LeaderTerm
from support.leading.served_api import ServedApi

PATH = "/api/v1/pending"
WHOLE = {"gpu_memory": "all"}


@pytest.fixture
async def leader_term(db: Database) -> AsyncIterator[LeaderTerm]:
    begun = await LeaderTerm.begin(db)
    yield begun
    await begun.aclose()


async def cluster_a(db: Database, leader_term: LeaderTerm) -> None:
    """Three workers of four GPUs, each partly held."""
    for name in ("w1", "w2", "w3"):
        await add_host(db, name, gpus=4, gib=80)
        resources = {"gpus": 1, "gpu_memory": "10GiB"}
        await add_deployment(db, f"on-{name}", resources=resources, placement={"workers": [name]})
    await leader_term.settle()
    for one in await leader_term.picture():
        await report(db, one["id"], "running")
    await leader_term.settle()


async def wait(db: Database, name: str, seconds: int) -> None:
    async with db.transaction() as c:
        await c.execute(
            """update instances set phase_since = now() - make_interval(secs => $2),
                                    created_at = now() - make_interval(secs => $2)
                where deployment_uid = (select uid from deployments where name = $1)""",
            name,
            float(seconds),
        )


async def apply(db: Database, leader_term: LeaderTerm, name: str, priority: int, gpus: int) -> str:
    uid = await add_deployment(db, name, priority=priority, resources={"gpus": gpus, **WHOLE})
    await leader_term.settle()
    return uid


async def test_big_leads_and_capacity_is_reserved_for_it(api: ServedApi, db: Database, leader_term: LeaderTerm) -> None:
    await cluster_a(db, leader_term)
    for name, priority, gpus, seconds in (
        ("younger", 50, 4, 20),
        ("big", 100, 4, 120),
        ("never", 300, 5, 90),
        ("older", 50, 4, 30),
    ):
        await apply(db, leader_term, name, priority, gpus)
        await wait(db, name, seconds)
    await leader_term.settle()
    status, found = await api.call("GET", PATH, role="viewer")
    assert status == 200
    items: list[dict[str, Any]] = found["items"]
    assert [(one["deployment"], one["place"], one["of"], one["priority"]) for one in items] == [
        ("never", 1, 4, 300), ("big", 2, 4, 100), ("older", 3, 4, 50), ("younger", 4, 4, 50),
    ]  # fmt: skip
    assert (found["of"], found["more"], found["next"]) == (4, False, None)
    big = items[1]
    (worker,) = big["reserved_on"]
    assert worker in ("w1", "w2", "w3")
    assert f"servers hold it, on {worker}" in big["message"]
    assert [one["reserved_on"] for one in items if one is not big] == [[], [], []]

    for one in items:
        shown = await api.get(f"/api/v1/instances/{one['instance']}")
        assert one["explain"] == shown["status"]["explain"]
        assert one["message"] == shown["status"]["explain"]["message"]
        assert (one["reason"], one["since"]) == (shown["status"]["reason"], shown["status"]["phase_since"])
    assert items[0]["message"].startswith("0/3 fit: 3 ")
    before = await leader_term.picture()
    await api.get(PATH)
    assert await leader_term.picture() == before, "it writes nothing"


async def test_what_has_no_place_yet_comes_last(api: ServedApi, db: Database, leader_term: LeaderTerm) -> None:
    await cluster_a(db, leader_term)
    await apply(db, leader_term, "big", 100, 8)
    uid = await apply(db, leader_term, "delayed", 500, 8)
    deleted = await apply(db, leader_term, "gone", 500, 8)
    await add_instance(db, await add_deployment(db, "new", priority=900), "new-1", phase="analyzing")
    async with db.transaction() as c:
        await c.execute("update instances set not_before = now() + interval '1 h' where deployment_uid = $1", uid)
        await c.execute("update deployments set deleted_at = now() where uid = $1", deleted)
    found = (await api.get(PATH))["items"]
    assert [(one["deployment"], one["place"], one["of"]) for one in found] == [
        ("big", 1, 1), ("new", None, 1), ("delayed", None, 1),
    ]  # fmt: skip
    assert [one["not_before"] is None for one in found] == [True, True, False]
    assert found[1]["explain"] is None


async def test_a_spec_that_this_version_cannot_run_keeps_its_place(
    api: ServedApi, db: Database, leader_term: LeaderTerm
) -> None:
    await cluster_a(db, leader_term)
    uid = await apply(db, leader_term, "newer", 100, 8)
    await apply(db, leader_term, "big", 50, 8)
    async with db.transaction() as c:
        await c.execute(
            """update revisions set spec = jsonb_set(spec, '{engine}', '"of-tomorrow"') where deployment_uid = $1""",
            uid,
        )
    found = (await api.get(PATH))["items"]
    assert [(one["deployment"], one["place"]) for one in found] == [("newer", 1), ("big", 2)]


async def test_those_that_ask_at_once_share_a_pass(
    api: ServedApi, db: Database, leader_term: LeaderTerm, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster_a(db, leader_term)
    await apply(db, leader_term, "big", 100, 8)
    passes, at_once = 0, 0

    def slow(*args: Any) -> Any:
        nonlocal passes, at_once
        passes, at_once = passes + 1, at_once + 1
        assert at_once == 1
        begun.set()
        assert go.wait(30)
        at_once -= 1
        return reservations_of(*args)

    begun, go = threading.Event(), threading.Event()
    monkeypatch.setattr("controller.api.dry_run.pending.reservations_of", slow)
    asked = [asyncio.create_task(api.get(PATH))]
    assert await asyncio.to_thread(begun.wait, 30)
    asked += [asyncio.create_task(api.get(PATH)) for _ in range(30)]
    await api.get("/api/v1/attention")  # it waits for no pass
    go.set()
    answers = await asyncio.gather(*asked)
    assert [[one["deployment"] for one in answer["items"]] for answer in answers] == [["big"]] * 31
    assert passes < 10


async def test_nothing_is_pending(api: ServedApi, db: Database) -> None:
    found = await api.get(PATH)
    assert (found["of"], found["items"], found["more"]) == (0, [], False)
    assert (await api.call("GET", PATH, role="inference"))[0] == 403
    assert await rows(db, "select 1 from instances") == []


async def test_of_many_the_first_are_listed(
    api: ServedApi, db: Database, leader_term: LeaderTerm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.api.dry_run.pending.MAX_QUEUED", 3)
    await add_deployment(db, "many", replicas=5, resources={"gpus": 1})
    await add_deployment(db, "first", priority=900, resources={"gpus": 1})
    await leader_term.settle()
    found = await api.get(PATH)
    assert [one["deployment"] for one in found["items"]] == ["first", "many", "many"]
    assert (found["of"], found["more"], [one["place"] for one in found["items"]]) == (6, True, [1, 2, 3])


async def test_nothing_is_reserved_by_a_preemption_that_placement_leaves_out(
    api: ServedApi, db: Database, leader_term: LeaderTerm
) -> None:
    await add_host(db, "w", gpus=1, gib=40)
    await add_deployment(db, "low", priority=10, resources={"gpus": 1})
    await leader_term.settle()
    env = {"TOKEN": {"secret": "token"}}
    await add_deployment(db, "high", priority=500, preempt=True, resources={"gpus": 1}, env=env)
    await leader_term.settle()
    _, found = await api.call("GET", PATH, role="viewer")
    (item,) = found["items"]
    assert (item["deployment"], item["reserved_on"]) == ("high", [])
