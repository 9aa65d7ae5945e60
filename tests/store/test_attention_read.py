"""What needs an operator is read at a cost that grows with what there is, and not with instances times events."""

import uuid
from typing import Any

from controller.store.core.database import Database
from controller.store.views.attention import read_attention
from support.database.ledger import add_deployment, add_instance

MANY = 300


async def _events_read(connection: Any) -> int:
    await connection.execute("select pg_stat_force_next_flush()")
    return int(
        await connection.fetchval(
            "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_user_tables where relname = 'events'"
        )
    )


async def test_instances_whose_model_cannot_be_read_share_one_look_at_its_events(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    other = await add_deployment(migrated, "other")
    for n in range(MANY):
        await add_instance(migrated, uid, f"i-{n:03}", phase="analyzing")
    await add_instance(migrated, other, "z", phase="analyzing")
    async with migrated.connection() as c:
        await c.execute(
            'update revisions set need = null, need_error = \'{"message": "gone"}\' where deployment_uid = $1',
            uuid.UUID(uid),
        )
        await c.execute(
            """insert into events (reason, message, evidence, objects, subjects, actor, at)
               select case when n between 1 and $2 / 2 then 'running' else 'metadata_unknown' end, '', '{}',
                      array['deployment:' || $1::text], '[]', '',
                      now() + make_interval(mins => n) from generate_series(-1, $2::int) n where n <> 0""",
            uid,
            MANY,
        )
        await c.execute("vacuum analyze events")
        before = await _events_read(c)
        facts = await read_attention(c, leading=True, violations=())
        read = await _events_read(c) - before
    *of_many, of_other = facts.instances
    assert [one.id for one in facts.instances] == [*(f"i-{n:03}" for n in range(MANY)), "z"]
    assert {one.need_error for one in of_many} == {"gone"}
    (first,) = {one.failing_since for one in of_many}
    assert first > max(one.since for one in of_many), "the first event since the spec was applied"
    assert (of_other.need_error, of_other.failing_since) == ("", of_other.since)
    assert read < 10 * MANY
