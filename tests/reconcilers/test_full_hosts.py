"""Rollouts where no GPU is free: what holds the places is named, what serves nothing gives them, growth waits."""

from typing import Any

import pytest

from controller.decide.attention import find_attention
from controller.store.core.database import Database
from controller.store.deployments import verbs
from controller.store.views.attention import read_attention
from controller.store.views.deployments import deployment_by_name
from controller.store.views.instances import list_instances
from support.builders.apply import apply_spec
from support.database.ledger import add_host, rows
from support.leading.leader_term import LeaderTerm
from support.leading.rollout_site import Site, chat

FULL = {"ready_for": 0, "surge": 1, "unavailable": 0}


@pytest.fixture
async def site(db: Database, leader_term: LeaderTerm) -> Site:
    await add_host(db, "w1", gpus=2)
    made = Site(db, leader_term)
    await apply_spec(db, "chat", chat())
    await made.play(6)
    assert await made.running() == [(1, "running")] * 2
    return made


async def test_the_holders_of_the_places_and_the_setting_are_told_where_users_look(db: Database, site: Site) -> None:
    await apply_spec(db, "chat", chat(0.02, rollout=FULL))
    await site.play(3)
    await site.pass_by(70)
    old = [row["id"] for row in await rows(db, "select id from instances where revision = 1")]
    async with db.snapshot() as c:
        shown = await deployment_by_name(c, "chat")
        listed = (await list_instances(c, limit=10)).items
        attention = find_attention(await read_attention(c, leading=True, violations=()))
    (pending,) = [one for one in listed if one.status.phase == "pending"]
    (entry,) = [one for one in attention if one.cause == "pending"]
    assert shown.status.rollout is not None
    assert pending.status.explain is not None
    assert shown.status.rollout.reason == "rollout_blocked"
    told = {
        "rollout status": shown.status.rollout.message,
        "get deployments": shown.status.message,
        "ps": pending.status.explain.message,
        "describe instance": pending.status.explain.note,
        "attention": entry.message,
    }
    for where, text in told.items():
        assert all(name in text for name in [*old, "rollout.unavailable: 1", "recreate", "surge"]), where
    assert (shown.status.reason, pending.status.reason, entry.code) == ("exclusive_conflict",) * 3
    await apply_spec(db, "chat", chat(0.02, rollout={**FULL, "unavailable": 1}))
    await site.play(14)
    await site.pass_by(20)
    assert await site.running() == [(2, "running")] * 2
    assert (await site.rollout())["state"] == "complete"


async def test_old_replicas_that_hang_give_their_places(db: Database, site: Site) -> None:
    async with db.transaction() as c:
        await c.execute("update processes set state = 'unhealthy'")
    await site.play(2)
    assert await site.running() == [(1, "unhealthy")] * 2
    await apply_spec(db, "chat", chat(0.02, rollout=FULL))
    await site.play(3)
    await site.pass_by(20)
    await site.play(20)
    assert await site.running() == [(2, "running")] * 2


@pytest.mark.parametrize("change", [{"rollout": {**FULL, "unavailable": 1}}, {"update": "recreate"}])
@pytest.mark.parametrize("by", ["manifest", "scale"])
async def test_growth_that_finds_no_place_does_not_hold_up_a_rollout(
    db: Database, site: Site, change: dict[str, Any], by: str
) -> None:
    number = {"replicas": 4} if by == "manifest" else {}
    await apply_spec(db, "chat", chat(0.02, **change, **number))
    if by == "scale":
        await verbs.scale(db, "chat", 4, 4)
    for _ in range(6):
        await site.play(4)
        await site.pass_by(15)
    assert await site.running() == [(2, "pending")] * 2 + [(2, "running")] * 2


async def test_the_replicas_that_the_apply_found_are_known_after_a_change_of_leader(db: Database, site: Site) -> None:
    await apply_spec(db, "chat", chat(0.02, replicas=3, rollout={**FULL, "unavailable": 1}))
    await site.play(2)
    await site.pass_by(20)
    other = await LeaderTerm.begin(db)
    site.term = other
    for _ in range(4):
        await site.play(4)
        await site.pass_by(15)
    assert await site.running() == [(2, "pending"), (2, "running"), (2, "running")]
    assert (await site.rollout())["kept"] == 2
    await other.aclose()
