"""How long capacity that servers hold stays reserved, and how long a young instance is protected, on the database."""

from datetime import datetime
from typing import Any

import pytest

from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_host, report, rows
from support.leading.leader_term import LeaderTerm

_LOOK = """
    select i.id, i.phase, i.reason, i.message, i.reserved_since, i.pushed_out_for from instances i
      join deployments d on d.uid = i.deployment_uid where d.name = $1 order by i.created_at, i.id"""


async def instances(db: Database, name: str) -> list[dict[str, Any]]:
    return await rows(db, _LOOK, name)


async def run(db: Database, leader_term: LeaderTerm, name: str, **fields: Any) -> str:
    await add_deployment(db, name, **fields)
    await leader_term.settle()
    (one,) = await instances(db, name)
    await report(db, one["id"], "running")
    await leader_term.settle()
    return str(one["id"])


async def execute(db: Database, statement: str, *values: Any) -> None:
    async with db.transaction() as connection:
        await connection.execute(statement, *values)


async def two_wait(db: Database, leader_term: LeaderTerm) -> None:
    """Servers hold three of four GPUs; `first` and `next` have been pending for long, and each needs more."""
    await add_host(db, "w1", gpus=2)
    await add_host(db, "w2", gpus=2)
    await run(db, leader_term, "server-a", resources={"gpus": 2}, placement={"workers": ["w1"]})
    await run(db, leader_term, "server-b", resources={"gpus": 1}, placement={"workers": ["w2"]})
    await add_deployment(db, "first", resources={"gpus": 2}, placement={"workers": ["w1"]})
    await leader_term.settle()
    await add_deployment(db, "next", resources={"gpus": 2}, placement={"workers": ["w2"]})
    await leader_term.settle()
    await execute(db, "update instances set phase_since = now() - interval '3 h' where phase = 'pending'")


async def reserved_since(db: Database, name: str) -> datetime | None:
    (one,) = await instances(db, name)
    return one["reserved_since"]


async def test_the_time_of_a_reservation_is_kept_over_a_new_leader(db: Database, leader_term: LeaderTerm) -> None:
    await two_wait(db, leader_term)
    await leader_term.settle()
    began = await reserved_since(db, "first")
    assert began is not None
    assert await reserved_since(db, "next") is None
    for _ in range(2):
        other = await LeaderTerm.begin(db)
        await other.settle()
        await other.aclose()
    assert await reserved_since(db, "first") == began
    (first,) = await instances(db, "first")
    assert "capacity is reserved for it for at most 1 h, since servers hold it, on w1" in first["message"]
    # The next one's turn has not come: a small one still takes the GPU that it would need.
    other = await LeaderTerm.begin(db)
    await add_deployment(db, "small", resources={"gpus": 1}, placement={"workers": ["w2"]})
    await other.settle()
    assert [one["phase"] for one in await instances(db, "small")] == ["scheduled"]
    await other.aclose()


async def test_after_its_time_the_next_one_has_its_turn(db: Database, leader_term: LeaderTerm) -> None:
    await two_wait(db, leader_term)
    await leader_term.settle()
    await execute(
        db, "update instances set reserved_since = now() - interval '61 min' where reserved_since is not null"
    )
    other = await LeaderTerm.begin(db)
    await other.settle()
    (first,), (second,) = await instances(db, "first"), await instances(db, "next")
    assert "no longer reserved for it after 1 h: servers hold what it needs" in first["message"]
    assert second["reserved_since"] is not None
    assert "reserved for it for at most 1 h, since servers hold it, on w2" in second["message"]
    await add_deployment(db, "small", resources={"gpus": 1}, placement={"workers": ["w2"]})
    await other.settle()
    (small,) = await instances(db, "small")
    assert (small["phase"], small["reason"]) == ("pending", "reserved")
    # Its time is over, its place in the queue is not: where a server ends by itself, it is placed.
    (server,) = await instances(db, "server-a")
    await execute(db, "update deployments set deleted_at = now() where name = 'server-a'")
    await other.settle()
    await report(db, server["id"], "exited", reason="stopped", code=0)
    await other.settle()
    assert [one["phase"] for one in await instances(db, "first")] == ["scheduled"]
    await other.aclose()


async def test_pending_anew_the_time_of_its_reservation_begins_anew(db: Database, leader_term: LeaderTerm) -> None:
    await two_wait(db, leader_term)
    await leader_term.settle()
    await execute(
        db,
        """update instances set reserved_since = now() - interval '2 h', phase_since = now() - interval '90 min'
            where reserved_since is not null""",
    )
    await leader_term.settle()
    (first,) = await instances(db, "first")
    assert "reserved for it for at most 1 h" in first["message"]
    seconds = await rows(
        db, "select extract(epoch from now() - reserved_since)::float8 as s from instances where id = $1", first["id"]
    )
    assert seconds[0]["s"] < 600


async def test_a_victim_younger_than_its_minimum_runtime_is_not_preempted(
    db: Database, leader_term: LeaderTerm
) -> None:
    await add_host(db, "w", gpus=1)
    low = await run(db, leader_term, "low", priority=10, resources={"gpus": 1}, minimum_runtime="1h")
    await add_deployment(db, "high", priority=50, preempt=True, resources={"gpus": 1})
    await leader_term.settle()
    other = await LeaderTerm.begin(db)
    await other.settle()
    assert [(one["phase"], one["pushed_out_for"]) for one in await instances(db, "low")] == [("running", None)]
    assert [one["phase"] for one in await instances(db, "high")] == ["pending"]
    # A change in place: it is older than that now.
    await execute(
        db, """update deployments set spec = jsonb_set(spec, '{minimum_runtime}', '0.001') where name = 'low'"""
    )
    await other.settle()
    (high,) = await instances(db, "high")
    victim = next(one for one in await instances(db, "low") if one["id"] == low)
    assert (victim["phase"], victim["pushed_out_for"]) == ("stopping", high["id"])
    await report(db, low, "exited", reason="stopped", code=0)
    await other.settle()
    assert [one["phase"] for one in await instances(db, "high")] == ["scheduled"]
    assert [one["phase"] for one in await instances(db, "low")] == ["pending"]
    await other.aclose()


@pytest.mark.parametrize(
    ("fields", "bounded"),
    [
        pytest.param({"restart": "on_failure"}, True, id="server-on_failure"),
        pytest.param({"restart": "never"}, True, id="server-never"),
        pytest.param({"restart": "on_failure", "engine": "custom", "command": ["s", "{port}"]}, True, id="with-a-port"),
        pytest.param({"restart": "on_failure", "engine": "custom", "command": ["train"]}, False, id="task-on_failure"),
        pytest.param({"restart": "never", "engine": "custom", "command": ["train"]}, False, id="task-never"),
    ],
)
async def test_only_tasks_are_awaited_without_end(
    db: Database, leader_term: LeaderTerm, fields: dict[str, Any], bounded: bool
) -> None:
    await add_host(db, "w1", gpus=2)
    await run(db, leader_term, "holder", resources={"gpus": 1}, **fields)
    await add_deployment(db, "big", resources={"gpus": 2})
    await leader_term.settle()
    await execute(db, "update instances set phase_since = now() - interval '3 h' where phase = 'pending'")
    await leader_term.settle()
    (big,) = await instances(db, "big")
    assert "reserved for it" in big["message"]
    assert (big["reserved_since"] is not None) is bounded
