"""Ten thousand instances wait for eight GPUs: a pass is a few short transactions, and each of them gets its answer."""

import uuid

from controller.reconcilers.placement import _MAX_EXPLAINED, EVERYTHING
from controller.store.core.database import Database
from support.database.ledger import add_deployment, add_host, rows
from support.leading.leader_term import LeaderTerm

MANY = 10_000
GPUS = 8
_ADD = """
    insert into instances (id, deployment_uid, revision, phase, epoch)
    select 'many-' || n, $1, 1, 'pending', 0 from generate_series(1, $2::int) as n"""
_BY_PHASE = "select phase, count(*) as n, count(*) filter (where reason <> '') as told from instances group by phase"
_COMMITS = "select count(distinct xmin::text) as n from instances"


async def test_each_of_many_is_placed_or_told_why_in_a_few_commits(db: Database, leader_term: LeaderTerm) -> None:
    await add_host(db, "w", gpus=GPUS)
    uid = await add_deployment(db, "many", resources={"gpus": 1})
    await leader_term.settle()  # its need is known, and the first one has its place
    async with db.transaction() as connection:
        await connection.execute(_ADD, uuid.UUID(uid), MANY - 1)
    await leader_term.placement.step([EVERYTHING])
    found = {row["phase"]: (row["n"], row["told"]) for row in await rows(db, _BY_PHASE)}
    assert found["scheduled"][0] == GPUS
    assert found["pending"] == (MANY - GPUS, MANY - GPUS)
    assert len(await rows(db, "select 1 from claims where device like 'GPU-%'")) == GPUS
    commits = (await rows(db, _COMMITS))[0]["n"]
    assert commits <= 2 + -(-MANY // _MAX_EXPLAINED), "the first one, the starts, and the explanations in portions"

    await leader_term.placement.step([EVERYTHING])
    assert (await rows(db, _COMMITS))[0]["n"] == commits, "what has not changed is not written again"
