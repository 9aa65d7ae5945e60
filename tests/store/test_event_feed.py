"""Events that are followed look as those that are listed."""

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
