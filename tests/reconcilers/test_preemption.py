"""Preemption happens once, by an ordinary stop; the victim is requeued with its queue time."""

from typing import Any

import pytest

from controller.domain.admission import Destination
from controller.domain.restart_delays import RestartSettings
from controller.reconcilers.placement import EVERYTHING
from controller.runtime.outcome import Requeue
from controller.store.core.database import Database
from controller.store.placement.plan_reads import read_demands
from support.database.ledger import add_deployment, add_host, report, rows
from support.leading.leader_term import LeaderTerm

_LOOK = """
    select d.name, i.id, i.phase, i.reason, i.message, i.stop_reason, i.pushed_out_for, i.replaces, i.created_at
      from instances i join deployments d on d.uid = i.deployment_uid order by d.name, i.created_at, i.id"""


async def look(db: Database) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in await rows(db, _LOOK):
        found.setdefault(row["name"], []).append(row)
    return found


async def run(db: Database, leader_term: LeaderTerm, name: str, **fields: Any) -> str:
    await add_deployment(db, name, **fields)
    await leader_term.settle()
    (one,) = (await look(db))[name]
    await report(db, one["id"], "running")
    await leader_term.settle()
    return str(one["id"])


async def test_the_lowest_priority_is_drained_and_its_capacity_reserved(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w", gpus=2)
    low = await run(db, leader_term, "low", priority=10, resources={"gpus": 1})
    mid = await run(db, leader_term, "mid", priority=20, resources={"gpus": 1})
    await add_deployment(db, "high", priority=50, preempt=True, resources={"gpus": 1})
    await leader_term.settle()
    seen = await look(db)
    (high,) = seen["high"]
    victim, successor = sorted(seen["low"], key=lambda row: row["id"] != low)
    assert (victim["phase"], victim["stop_reason"], victim["pushed_out_for"]) == ("stopping", "preempted", high["id"])
    assert (successor["phase"], successor["replaces"], successor["created_at"]) == (
        "pending",
        low,
        victim["created_at"],
    )
    assert (high["phase"], high["reason"]) == ("pending", "preempting")
    assert [row["phase"] for row in seen["mid"]] == ["running"]
    # A new one with a higher priority than the victim: it would fit into the reserved capacity.
    await add_deployment(db, "thief", priority=15, resources={"gpus": 1})
    await leader_term.settle()
    await report(db, low, "exited", reason="stopped", code=0)
    await leader_term.settle()
    seen = await look(db)
    assert [row["phase"] for row in seen["high"]] == ["scheduled"]
    assert [row["phase"] for row in (*seen["thief"], *seen["low"])] == ["pending", "pending"]
    assert [row["id"] for row in seen["mid"]] == [mid]
    events = await rows(db, "select reason, objects, evidence from events where reason in ('preempting', 'stopping')")
    preempting = next(e for e in events if e["reason"] == "preempting")
    assert {f"instance:{low}", f"instance:{high['id']}"} <= set(preempting["objects"])
    assert preempting["evidence"]["leave"] == [{"instance": low, "priority": 10, "gpus": 1}]
    assert [e["evidence"]["reason"] for e in events if e["reason"] == "stopping"] == ["preempted"]


async def test_a_change_of_leader_preempts_nothing_twice(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w", gpus=2)
    for name in ("a", "b"):
        await run(db, leader_term, name, priority=10, resources={"gpus": 1})
    await add_deployment(db, "high", priority=50, preempt=True, resources={"gpus": 1})
    await leader_term.settle()
    for _ in range(3):
        other = await LeaderTerm.begin(db)
        await other.settle()
        await other.aclose()
    stopping = [row["id"] for one in (await look(db)).values() for row in one if row["phase"] == "stopping"]
    assert len(stopping) == 1


async def test_nothing_is_preempted_without_fit_or_permission(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w", gpus=2)
    await run(db, leader_term, "low", priority=10, resources={"gpus": 1})
    await add_deployment(db, "huge", priority=50, preempt=True, resources={"gpus": 3})
    await add_deployment(db, "meek", priority=50, resources={"gpus": 2})
    await add_deployment(db, "equal", priority=10, preempt=True, resources={"gpus": 2})
    await leader_term.settle()
    seen = await look(db)
    assert [row["phase"] for row in seen["low"]] == ["running"]
    assert {seen[name][0]["phase"] for name in ("huge", "meek", "equal")} == {"pending"}
    assert await rows(db, "select 1 from instances where pushed_out_for is not null") == []


async def test_when_the_preemptor_is_deleted_the_victims_successor_gets_its_place(
    db: Database, leader_term: LeaderTerm
) -> None:
    await add_host(db, "w", gpus=1)
    low = await run(db, leader_term, "low", priority=10, resources={"gpus": 1})
    uid = await add_deployment(db, "high", priority=50, preempt=True, resources={"gpus": 1})
    await leader_term.settle()
    async with db.connection() as connection:
        await connection.execute("update deployments set deleted_at = now() where uid = $1", uid)
    await leader_term.settle()
    await report(db, low, "exited", reason="stopped", code=0)
    await leader_term.settle()
    seen = await look(db)
    assert list(seen) == ["low"]
    assert [row["phase"] for row in seen["low"]] == ["scheduled"]


async def test_capacity_is_reserved_after_a_long_wait(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w", gpus=2)
    first = await run(db, leader_term, "first", resources={"gpus": 1})
    await add_deployment(db, "big", resources={"gpus": 2})
    await leader_term.settle()
    async with db.connection() as connection:
        await connection.execute("update instances set phase_since = now() - interval '2 min' where phase = 'pending'")
    await add_deployment(db, "small", resources={"gpus": 1})
    await leader_term.settle()
    seen = await look(db)
    (small,), (big,) = seen["small"], seen["big"]
    assert (small["phase"], small["reason"]) == ("pending", "reserved")
    assert big["id"] in small["message"]
    assert [row["phase"] for row in seen["first"]] == ["running"]
    async with db.connection() as connection:
        await connection.execute("update deployments set deleted_at = now() where name = 'first'")
    await leader_term.settle()
    await report(db, first, "exited", reason="stopped", code=0)
    await leader_term.settle()
    seen = await look(db)
    assert [row["phase"] for row in (*seen["big"], *seen["small"])] == ["scheduled", "pending"]


async def test_after_a_victims_worker_is_lost_another_is_preempted(db: Database, leader_term: LeaderTerm) -> None:
    """The end of the lost victim's fence is unknown, so its capacity is not awaited."""
    await add_host(db, "w1", gpus=1)
    await add_host(db, "w2", gpus=1)
    for name in ("a", "b"):
        await run(db, leader_term, name, priority=10, resources={"gpus": 1})
    await add_deployment(db, "high", priority=50, preempt=True, resources={"gpus": 1})
    await leader_term.settle()
    (victim,) = [row for one in (await look(db)).values() for row in one if row["phase"] == "stopping"]
    async with db.connection() as connection:
        await connection.execute(
            """update workers set phase = 'lost'
                where id in (select worker_id from processes where instance_id = $1)""",
            victim["id"],
        )
    await leader_term.settle()
    stopping = {row["id"] for one in (await look(db)).values() for row in one if row["phase"] == "stopping"}
    assert len(stopping) == 2


async def _waits_long(db: Database, name: str) -> None:
    async with db.connection() as connection:
        await connection.execute(
            """update instances i set phase_since = now() - interval '2 min' from deployments d
                where d.uid = i.deployment_uid and d.name = $1""",
            name,
        )


async def test_what_is_drained_goes_to_its_preemptor_and_not_to_an_older_one_of_equal_priority(
    db: Database, leader_term: LeaderTerm
) -> None:
    for host in ("a", "b"):
        await add_host(db, host, gpus=1)
    for name in ("t", "s"):
        await run(db, leader_term, name, priority=10, resources={"gpus": 1})
    await add_deployment(db, "w", priority=50, resources={"gpus": 1})
    await leader_term.settle()
    await _waits_long(db, "w")
    await add_deployment(db, "p", priority=50, preempt=True, resources={"gpus": 1})
    await leader_term.settle()
    for _ in range(3):
        for row in [row for name in ("s", "t") for row in (await look(db))[name] if row["phase"] == "stopping"]:
            await report(db, row["id"], "exited", reason="stopped", code=0)
        other = await LeaderTerm.begin(db)
        await other.settle()
        await other.aclose()
    seen = await look(db)
    assert [row["phase"] for row in seen["p"]] == ["scheduled"]
    assert [row["phase"] for row in seen["w"]] == ["pending"]
    assert sorted(row["phase"] for name in ("s", "t") for row in seen[name]) == ["pending", "running"]
    assert len(await rows(db, "select 1 from events where reason = 'preempting'")) == 1


async def test_a_place_is_kept_while_its_victims_end_one_after_another(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "a", gpus=2)
    low = [await run(db, leader_term, name, priority=10, resources={"gpus": 1}) for name in ("s", "t")]
    await add_deployment(db, "older", priority=50, resources={"gpus": 1})
    await leader_term.settle()
    await add_deployment(db, "pair", priority=50, preempt=True, resources={"gpus": 2})
    for victim in low:
        await leader_term.settle()
        await report(db, victim, "exited", reason="stopped", code=0)
    await leader_term.settle()
    seen = await look(db)
    assert [row["phase"] for row in (*seen["pair"], *seen["older"])] == ["scheduled", "pending"]


async def _refuse(db: Database, instance: str, code: str, message: str = "") -> None:
    """The start of the instance is refused."""
    async with db.connection() as connection:
        await connection.execute(
            """update commands set state = 'refused', code = $2, message = $3, answered_at = now()
                where instance_id = $1 and verb = 'start' and state = 'open'""",
            instance,
            code,
            message,
        )


_SECRET = {"env": {"TOKEN": {"secret": "token"}}}


async def _store_secret(db: Database, deployments: list[str], key_id: str = "") -> None:
    async with db.connection() as connection:
        await connection.execute("delete from secrets")
        await connection.execute(
            """insert into secrets (name, value, sealed, key_id, deployments)
               values ('token', case when $1 = '' then 'v' end, case when $1 <> '' then '\\x00'::bytea end, $1, $2)""",
            key_id,
            deployments,
        )


@pytest.mark.parametrize("stored", ["none", "forbidden", "unreadable"])
async def test_an_instance_that_cannot_start_preempts_nothing_until_its_secret_is_there(
    db: Database, leader_term: LeaderTerm, stored: str
) -> None:
    await add_host(db, "w", gpus=1)
    await run(db, leader_term, "low", priority=10, resources={"gpus": 1})
    if stored != "none":
        await _store_secret(db, ["other"] if stored == "forbidden" else [], "gone" if stored == "unreadable" else "")
    await add_deployment(db, "high", priority=500, preempt=True, resources={"gpus": 1}, **_SECRET)
    await leader_term.settle()
    seen = await look(db)
    assert [row["phase"] for row in seen["low"]] == ["running"]
    assert [row["phase"] for row in seen["high"]] == ["pending"]
    assert "preempts nothing: secret 'token'" in seen["high"][0]["message"]
    await _store_secret(db, ["hi*"])
    await leader_term.settle()
    assert sorted(row["phase"] for row in (await look(db))["low"]) == ["pending", "stopping"]


@pytest.mark.parametrize("code", ["bad_command", "unknown_device"])
async def test_after_a_lasting_refusal_nothing_is_preempted_until_the_agent_has_changed(
    db: Database, leader_term: LeaderTerm, code: str
) -> None:
    """Its place is taken while it waits; it does not take it back for a start that fails again."""
    await add_host(db, "w", gpus=1)
    await add_deployment(db, "high", priority=500, preempt=True, resources={"gpus": 1})
    await leader_term.settle()
    (high,) = (await look(db))["high"]
    await _refuse(db, high["id"], code, "this agent cannot")
    await leader_term.instances.step(sorted(await leader_term.instances.list_keys()))
    async with db.connection() as connection:
        await connection.execute("update instances set not_before = now() + interval '1 h'")
    await run(db, leader_term, "low", priority=10, resources={"gpus": 1})
    async with db.connection() as connection:
        await connection.execute("update instances set not_before = null, failures = 9 where id = $1", high["id"])
    await leader_term.settle()
    seen = await look(db)
    assert [row["phase"] for row in seen["low"]] == ["running"]
    assert "preempts nothing: worker w refused its start: this agent cannot" in seen["high"][0]["message"]
    async with db.connection() as connection:
        await connection.execute("update workers set reported_at = clock_timestamp()")
    await leader_term.settle()
    assert sorted(row["phase"] for row in (await look(db))["low"]) == ["pending", "stopping"]


async def test_after_a_passing_refusal_its_delay_comes_first(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w", gpus=1)
    await add_deployment(db, "high", priority=500, preempt=True, resources={"gpus": 1})
    await leader_term.settle()
    (high,) = (await look(db))["high"]
    await _refuse(db, high["id"], "shutting_down")
    await leader_term.instances.step(sorted(await leader_term.instances.list_keys()))
    async with db.connection() as connection:
        await connection.execute("update instances set not_before = now() + interval '1 h'")
    await run(db, leader_term, "low", priority=10, resources={"gpus": 1})
    slow = LeaderTerm(db, await _term(db), RestartSettings(base_s=60.0, cap_s=300.0))
    async with db.connection() as connection:
        await connection.execute("update instances set not_before = null where id = $1", high["id"])
    await slow.settle()
    seen = await look(db)
    assert [row["phase"] for row in seen["low"]] == ["running"]
    (outcome,) = (await slow.placement.step([EVERYTHING])).values()
    assert isinstance(outcome, Requeue), "nothing else ends the delay"
    assert 50 < outcome.after_s <= 60
    async with db.connection() as connection:
        await connection.execute("update commands set answered_at = answered_at - interval '5 s'")
    await slow.settle()
    assert (await look(db))["high"][0]["message"] == seen["high"][0]["message"], "it is not written with each pass"
    async with db.connection() as connection:
        await connection.execute("update commands set answered_at = now() - interval '2 min' where state = 'refused'")
    await slow.settle()
    assert sorted(row["phase"] for row in (await look(db))["low"]) == ["pending", "stopping"]
    await slow.aclose()


async def _term(db: Database) -> int:
    (row,) = await rows(db, "select term from lease")
    return int(row["term"])


async def test_the_place_that_victims_leave_is_known_to_a_plan_of_relocations(
    db: Database, leader_term: LeaderTerm
) -> None:
    await add_host(db, "w", gpus=1)
    await run(db, leader_term, "low", priority=10, resources={"gpus": 1})
    await add_deployment(db, "high", priority=500, preempt=True, resources={"gpus": 1})
    await leader_term.settle()
    async with db.snapshot() as connection:
        demands = await read_demands(connection, 10)
    assert [(one.priority, one.promised) for one in demands] == [
        (500, Destination(("w",), ("GPU-w-0",))),
        (10, None),
    ]
