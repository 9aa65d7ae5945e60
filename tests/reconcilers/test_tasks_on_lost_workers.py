"""Tasks on workers that fall silent, on a database: one copy at a time, and a command that helps."""

from typing import Any

import pytest

from controller.store.core.database import Database
from support.database.ledger import Host, add_deployment, add_host, rows
from support.leading.leader_term import LeaderTerm

TASK = {"engine": "custom", "command": ["train"], "resources": {"gpus": 1}}


async def execute(db: Database, statement: str, *values: Any) -> None:
    async with db.transaction() as connection:
        await connection.execute(statement, *values)


async def instances(db: Database) -> list[dict[str, Any]]:
    return await rows(
        db,
        """select i.id, i.phase, i.reason, i.message, i.epoch,
                  (select count(distinct c.rank) from claims c where c.instance_id = i.id) as ranks
             from instances i order by i.created_at, i.id""",
    )


async def report_rank(db: Database, rank: int, state: str, code: int | None = None) -> None:
    """As the hub writes it: the time of an end is that of its first report."""
    reason = "exit" if state == "exited" else None
    await execute(
        db,
        """insert into processes (instance_id, epoch, rank, worker_id, state, reason, exit_code, seq, session,
                                  reported_at)
           select i.id, i.epoch, $1, d.worker_id, $2, $3, $4, 1, 1, clock_timestamp()
             from instances i join claims c on c.instance_id = i.id and c.rank = $1 join devices d on d.uuid = c.device
            limit 1
           on conflict (instance_id, epoch, rank)
           do update set state = excluded.state, reason = excluded.reason, exit_code = excluded.exit_code,
                         reported_at = excluded.reported_at""",
        rank,
        state,
        reason,
        code,
    )


async def running(db: Database, leader_term: LeaderTerm, **fields: Any) -> str:
    await add_deployment(db, "d", **{**TASK, **fields})
    await leader_term.settle()
    (one,) = await instances(db)
    await execute(db, "update commands set state = 'accepted', sent_at = now()")
    for rank in range(one["ranks"]):
        await report_rank(db, rank, "running")
    await leader_term.settle()
    assert [i["phase"] for i in await instances(db)] == ["running"]
    return str(one["id"])


async def lose(db: Database, leader_term: LeaderTerm, host: Host) -> None:
    for phase in ("unreachable", "lost"):
        await execute(db, "update workers set phase = $1 where id = $2", phase, host.id)
        await leader_term.settle()


@pytest.mark.parametrize("restart", ["on_failure", "never"])
async def test_one_copy_runs_until_its_host_is_known_to_be_dead(
    db: Database, leader_term: LeaderTerm, restart: str
) -> None:
    home = await add_host(db, "w1", gpus=1)
    name = await running(db, leader_term, restart=restart)
    await add_host(db, "w2", gpus=1)
    await lose(db, leader_term, home)
    (one,) = await instances(db)
    assert (one["id"], one["phase"], one["reason"]) == (name, "unreachable", "task_may_run")
    assert "gpuward delete worker w1 --confirm-dead" in one["message"]
    await execute(db, "update workers set confirmed_dead = now()")
    await leader_term.step()
    await leader_term.settle()
    (one,) = await instances(db)
    if restart == "never":
        assert (one["id"], one["phase"], one["reason"]) == (name, "failed", "worker_lost")
    else:
        assert (one["id"] != name, one["phase"]) == (True, "scheduled")


async def test_it_goes_on_when_its_host_returns(db: Database, leader_term: LeaderTerm) -> None:
    home = await add_host(db, "w1", gpus=1)
    name = await running(db, leader_term, restart="on_failure")
    await add_host(db, "w2", gpus=1)
    await lose(db, leader_term, home)
    await execute(db, "update workers set phase = 'ready'")
    await leader_term.settle()
    (one,) = await instances(db)
    assert (one["id"], one["phase"], one["reason"], one["message"]) == (name, "running", "", "its worker is back")


async def test_a_server_is_replaced_as_before(db: Database, leader_term: LeaderTerm) -> None:
    home = await add_host(db, "w1", gpus=1)
    await running(db, leader_term, engine="simulated", command=[], restart="always")
    await add_host(db, "w2", gpus=1)
    await lose(db, leader_term, home)
    assert [i["phase"] for i in await instances(db)] == ["replaced", "scheduled"]


async def test_of_two_ranks_that_failed_the_first_one_is_the_cause_and_its_worker_is_left_alone(
    db: Database, leader_term: LeaderTerm
) -> None:
    for name in ("w1", "w2", "w3"):
        await add_host(db, name, gpus=1)
    gang = {"resources": {"gpus": 2, "max_workers": 2}, "parallel": {"tp": 1, "pp": 2}}
    await running(db, leader_term, engine="simulated", command=[], restart="always", **gang)
    await report_rank(db, 1, "exited", 3)
    await report_rank(db, 0, "exited", 1)  # since it lost its peer
    await execute(db, "update instances set failures = 2")
    await leader_term.settle()
    events = await rows(db, "select evidence from events where reason = 'backoff'")
    assert [(e["evidence"]["rank"], e["evidence"]["collateral_ranks"]) for e in events] == [(1, [0])]
    (one,) = await instances(db)
    used = await rows(
        db, "select w.name from claims c join devices d on d.uuid = c.device join workers w on w.id = d.worker_id"
    )
    assert one["epoch"] == 2
    assert "w2" not in {row["name"] for row in used}, "not the worker of the rank with the lowest number"
