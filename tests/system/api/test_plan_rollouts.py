"""Plans of changes that roll out: they tell how, and each is what the apply then comes to."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from controller.store.core.database import Database
from controller.store.deployments import rollouts
from support.api_calls import deployment, plan
from support.database.ledger import add_host, rows
from support.leading.leader_term import LeaderTerm
from support.leading.plan_floor import Document, Floor, check_foretold
from support.leading.served_api import ServedApi
from support.standins.hosts_by_hand import set_heartbeat

WAITS = "the rollout waits for an instance before it that does not fit; the old one goes on running"


def chat(env: str = "1", **fields: Any) -> Document:
    rollout = {"ready_for": 0, **fields.pop("rollout", {})}
    base = {"replicas": 2, "update": "rolling", "resources": {"gpus": 1}, "env": {"LANG": env}}
    return deployment("chat", **{**base, "rollout": rollout, **fields})


@pytest.fixture
async def floor(api: ServedApi, db: Database) -> AsyncIterator[Floor]:
    term = await LeaderTerm.begin(db)
    yield Floor(api, db, term)
    await term.aclose()


async def up(floor: Floor, *, gpus: int, document: Document | None = None) -> None:
    host = await add_host(floor.db, "w", gpus=gpus)
    await set_heartbeat(floor.db, host.id)
    await floor.apply(document or chat())
    await floor.rest()
    assert {one["phase"] for one in await floor.instances()} == {"running"}


async def foretold(floor: Floor, document: Document) -> dict[str, Any]:
    """The plan of this document, once the apply has come to what it says."""
    earlier = await floor.instances()
    body = await plan(floor.api, document)
    await check_foretold(floor, body, (document,), earlier)
    return body


def fits(body: dict[str, Any]) -> list[bool]:
    return [item["fits"] for item in body["items"]]


async def newest(floor: Floor) -> list[tuple[bool, str]]:
    return sorted((one["newest"], one["phase"]) for one in await floor.instances())


async def test_with_a_gpu_to_spare_each_replacement_starts_first(floor: Floor) -> None:
    await up(floor, gpus=3)
    (spare,) = {f"GPU-w-{n}" for n in range(3)} - {r["device"] for r in await rows(floor.db, "select * from claims")}
    body = await foretold(floor, chat("2"))
    assert (body["changes"], fits(body)) == ({"chat": "replace"}, [True, True])
    assert body["items"][0]["gpus"] == [spare]
    assert body["items"][1]["gpus"] != [spare], "of the oldest one, which has ended by then"
    assert body["rollouts"] == {
        "chat": "a new revision: at most 3 instances, at least 2 available; the oldest go first"
    }
    assert await newest(floor) == [(True, "running")] * 2


async def test_g54_without_a_gpu_to_spare_the_reason_is_told_and_what_follows_waits(floor: Floor) -> None:
    await up(floor, gpus=2)
    body = await foretold(floor, chat("2"))
    assert fits(body) == [False, False]
    first, second = body["items"]
    assert (first["reason"], second["reason"], second["explain"]["message"]) == ("exclusive_conflict", None, WAITS)
    assert await newest(floor) == [(False, "running")] * 2 + [(True, "pending")]
    old = [one["id"] for one in await floor.instances() if not one["newest"]]
    held = first["explain"]["message"]
    assert all(name in held for name in [*old, "`rollout.unavailable: 1`", "recreate"]), "what holds the place is named"
    (pending,) = [one for one in await floor.instances() if one["newest"]]
    assert pending["reason"] == first["reason"]
    body = await foretold(floor, chat("3", rollout={"unavailable": 1}))
    assert fits(body) == [True, True]
    assert body["rollouts"]["chat"].startswith("a new revision: at most 3 instances, at least 1 available")
    assert await newest(floor) == [(True, "running")] * 2


async def test_g55_the_old_spec_in_mid_rollout_is_foretold_to_start_only_what_is_missing(floor: Floor) -> None:
    await up(floor, gpus=2)
    await floor.apply(chat("2"))
    await floor.rest()
    assert await newest(floor) == [(False, "running")] * 2 + [(True, "pending")], "it waits"
    body = await foretold(floor, chat("1"))
    assert (body["changes"], body["items"]) == ({"chat": "replace"}, []), "the old ones run still"
    assert body["rollouts"]["chat"].startswith("revision 1 again: ")
    assert await newest(floor) == [(True, "running")] * 2
    assert [row["revision"] for row in await rows(floor.db, "select revision from deployments")] == [1]
    await floor.apply(chat("2", rollout={"unavailable": 1}))
    for _ in range(20):
        await floor.term.step()
        await floor.hosts.run_commands()
        if [row for row in await floor.instances() if row["newest"] and row["phase"] == "running"]:
            break
    body = await foretold(floor, chat("1", rollout={"unavailable": 1}))
    assert fits(body) == [True], "one runs still, the other is replaced back"
    assert await newest(floor) == [(True, "running")] * 2


async def test_a_paused_rollout_is_foretold_to_replace_nothing(floor: Floor) -> None:
    await up(floor, gpus=3)
    await rollouts.pause(floor.db, "chat")
    body = await foretold(floor, chat("2"))
    assert fits(body) == [False, False]
    assert {item["explain"]["message"] for item in body["items"]} == {
        "the rollout is paused; the old one goes on running until it is resumed"
    }
    assert body["rollouts"] == {
        "chat": "a new revision, but the rollout is paused: nothing is replaced until it is resumed"
    }
    assert await newest(floor) == [(False, "running")] * 2


async def test_the_way_of_other_changes_is_told_too(floor: Floor) -> None:
    await up(floor, gpus=3)
    body = await plan(floor.api, chat("2", rollout={"canary": {"weight": 10, "for": "10m"}}))
    assert body["rollouts"]["chat"].startswith(
        "a new revision: first 1 of 2 with 10 % of the requests for 600 s; at most"
    )
    body = await plan(floor.api, chat("2", update="recreate"))
    assert "each old instance stops before its replacement starts" in body["rollouts"]["chat"]
    body = await plan(floor.api, chat("2", replicas=0))
    assert (body["rollouts"], body["items"]) == (
        {"chat": "a new revision, with the next replica: none is wanted now"},
        [],
    )
    assert (await plan(floor.api, chat(replicas=3)))["rollouts"] == {}
    assert (await plan(floor.api, deployment("other")))["rollouts"] == {}


async def test_a_gang_rolls_with_room_for_one_more_and_waits_without(floor: Floor) -> None:
    gang = {"replicas": 1, "resources": {"gpus": 2, "max_workers": 2}}
    for name in ("b", "c"):
        host = await add_host(floor.db, name, gpus=1)
        await set_heartbeat(floor.db, host.id)
    await up(floor, gpus=1, document=chat(**gang))
    body = await foretold(floor, chat("2", **gang))
    assert fits(body) == [False]
    host = await add_host(floor.db, "d", gpus=1)
    await set_heartbeat(floor.db, host.id)
    body = await foretold(floor, chat("3", **gang))
    assert fits(body) == [True]
    assert len(body["items"][0]["workers"]) == 2
    assert await newest(floor) == [(True, "running")]


async def test_growth_without_a_place_is_told_apart_from_what_is_replaced(floor: Floor) -> None:
    await up(floor, gpus=2)
    body = await foretold(floor, chat("2", replicas=3, rollout={"unavailable": 1}))
    assert sorted(fits(body)) == [False, True, True]
    assert await newest(floor) == [(True, "pending"), (True, "running"), (True, "running")]


async def test_with_recreate_too(floor: Floor) -> None:
    await up(floor, gpus=2, document=chat(update="recreate"))
    body = await foretold(floor, chat("2", replicas=4, update="recreate"))
    assert sorted(fits(body)) == [False, False, True, True]
    assert await newest(floor) == [(True, "pending")] * 2 + [(True, "running")] * 2
