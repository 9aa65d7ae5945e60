"""Events that are followed look as those that are listed."""

import time

from controller.domain.events import NewEvent
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.views.events import EventFilter, events_above, list_events


async def test_durations_are_told_in_both(migrated: Database) -> None:
    evidence = {"durations": {"pending": 0.5, "starting": 3.0}}
    async with migrated.transaction() as connection:
        await write_events(connection, [NewEvent("running", "it runs", ("instance:i-1",), evidence)])
    async with migrated.snapshot() as connection:
        followed = await events_above(connection, 0, (), 10)
        listed = (await list_events(connection, limit=10, wanted=EventFilter())).items
    assert followed == listed
    assert followed[0].durations == evidence["durations"]


async def test_many_seen_events_cost_what_they_are_also_with_a_kept_plan(migrated: Database) -> None:
    few, many = 2_000, 30_000
    async with migrated.transaction() as c:
        await c.execute(
            """insert into events (reason, message, evidence, objects, subjects, actor)
               select 'r', '', '{}', '{}', '[]', '' from generate_series(1, $1::int)""",
            many + 3,
        )
        ids = [row["id"] for row in await c.fetch("select id from events order by id")]
    async with migrated.connection() as c:
        await c.execute("set plan_cache_mode = force_generic_plan")
        costs = []
        for number in (few, many):
            took = []
            for _ in range(3):
                begun = time.monotonic()
                found = await events_above(c, 0, ids[:number], 3)
                took.append(time.monotonic() - begun)
                assert [event.id for event in found] == ids[number : number + 3]
            costs.append(min(took))
        await c.execute("reset plan_cache_mode")
    assert costs[1] < 5 * many / few * costs[0], costs
