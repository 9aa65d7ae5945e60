"""Places in queues that gateways hold, in the database."""

import uuid

import asyncpg

from controller.domain.queue_places import PlacesAsk, PlacesGrant
from controller.store.core.database import Database
from controller.store.core.events import CHANNEL
from controller.store.scaling.gateways import leave
from controller.store.scaling.queue_places import lease_queue_places
from support.database.ledger import rows

P, Q = uuid.uuid4(), uuid.uuid4()
ONE, TWO = str(uuid.uuid4()), str(uuid.uuid4())


async def lease(database: Database, gateway: uuid.UUID, *asks: PlacesAsk, in_touch_s: float = 60) -> list[PlacesGrant]:
    async with database.transaction() as connection:
        return await lease_queue_places(connection, gateway, asks, in_touch_s)


def ask(placed: int, need: int, *, of: str = ONE, since_s: float = 0.0) -> PlacesAsk:
    return PlacesAsk(of, 4, placed, need, since_s)


async def test_places_are_leased_per_queue_and_returned(migrated: Database) -> None:
    assert [g.usable for g in await lease(migrated, P, ask(0, 3), ask(0, 4, of=TWO))] == [3, 4]
    (grant,) = await lease(migrated, Q, ask(0, 4))
    assert (grant.usable, grant.elsewhere) == (1, 3)
    await lease(migrated, P, ask(0, 0), ask(0, 0, of=TWO))
    assert [r["gateway_id"] for r in await rows(migrated, "select * from queue_places")] == [Q]
    assert (await lease(migrated, Q, ask(1, 4)))[0].usable == 4
    async with migrated.connection() as connection:
        await leave(connection, Q)
    assert await rows(migrated, "select * from queue_places") == []


async def test_a_gateway_that_died_loses_its_places_to_one_that_was_in_touch(migrated: Database) -> None:
    await lease(migrated, P, ask(0, 4))
    async with migrated.transaction() as connection:
        await connection.execute("update queue_places set at = at - interval '11 s'")
    assert (await lease(migrated, Q, ask(0, 1), in_touch_s=3.0))[0].usable == 0, "the database was away for both"
    async with migrated.transaction() as connection:
        await connection.execute("update queue_places set at = at - interval '11 s' where gateway_id = $1", P)
    assert (await lease(migrated, Q, ask(0, 4)))[0].usable == 4
    assert [r["gateway_id"] for r in await rows(migrated, "select * from queue_places")] == [Q]


async def test_the_others_are_told_where_a_place_is_lacking(migrated: Database) -> None:
    heard: list[str] = []

    def hear(*args: object) -> None:
        heard.append(str(args[-1]))

    connection = await asyncpg.connect(migrated.dsn)
    await connection.add_listener(CHANNEL, hear)
    try:
        await lease(migrated, P, ask(0, 4))
        await connection.execute("select 1")
        assert heard == [], "nothing is lacking"
        await lease(migrated, Q, ask(0, 1))
        await connection.execute("select 1")
        assert heard == [f"places {Q}"]
        await lease(migrated, P, ask(4, 4))
        await lease(migrated, Q, ask(0, 1, since_s=5.0))
        await connection.execute("select 1")
        assert len(heard) == 1, "the others have asked since: it is known that none is free"
    finally:
        await connection.close()
