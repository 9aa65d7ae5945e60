"""After any history of writes and dry runs, the kept inventory is what a fresh read of the same moment finds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from controller.api.dry_run.kept_inventory import KeptInventory
from controller.domain.placement import Ask, Layout, Placed
from controller.leader.placement_passes import InventoryCache
from controller.scheduling.search.place import place
from controller.store.core.database import Database
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim, rows
from support.database.migrated import migrated_database
from support.database.postgres import PostgresServer
from support.database.truncated import EMPTY
from support.profiles import plan_settings

Step = tuple[Any, ...]
HOSTS = ("w0", "w1", "w2")
CHANGES = {
    "cordon": "update workers set cordoned = not cordoned where name = $1",
    "lose": "update workers set phase = 'lost' where name = $1",
    "return": "update workers set phase = 'ready' where name = $1",
    "label": 'update workers set labels = labels || \'{"zone": "b"}\' where name = $1',
    "remove": "update workers set deleted_at = now(), phase = 'lost' where name = $1",
    "sicken": "update devices set health = 'unhealthy' where uuid = 'GPU-' || $1 || '-0'",
    "cordon a GPU": "update devices set cordoned = not cordoned where uuid = 'GPU-' || $1 || '-1'",
    "use": "update devices set foreign_mib = foreign_mib + 512 where uuid = 'GPU-' || $1 || '-0'",
    "grow": "update devices set memory_mib = memory_mib + 1024 where uuid = 'GPU-' || $1 || '-1'",
    "swap": "update devices set model = 'A100' where uuid = 'GPU-' || $1 || '-0'",
}
hosts = st.sampled_from(HOSTS)
names = st.sampled_from(["i0", "i1", "i2", "i3"])
steps = st.one_of(
    st.tuples(st.sampled_from(["add", *CHANGES]), hosts),
    st.tuples(st.just("start"), names, hosts, st.integers(0, 1), st.integers(1, 8)),
    st.tuples(st.just("end"), names),
    st.tuples(st.just("begin"), st.sampled_from(sorted(CHANGES)), hosts),  # commits at a later step
    st.tuples(st.sampled_from(["commit", "look", "look", "dry run", "dry run", "two", "leave", "rest"])),
)


def columns(table: Any) -> dict[str, Any]:
    return {column.name: list(getattr(table, column.name)) for column in fields(table)}


def picture(cache: InventoryCache, instances: list[str]) -> dict[str, Any]:
    """All that a dry run sees."""
    inventory = cache.inventory
    inventory.begin_pass()
    groups = inventory.groups
    return {
        "gpus": columns(inventory.gpus),
        "workers": columns(inventory.workers),
        "groups": (groups.worker.tolist(), groups.gpus.tolist(), groups.kind.tolist(), groups.of_gpu.tolist()),
        "states": sorted(inventory.equal_groups.examples(inventory.groups_on(())).tolist()),
        "demand": inventory.demand.known,
        "holdings": {id_: cache.holdings.get(id_) for id_ in instances},
        "labels": inventory.label_mask("zone", "b").tolist(),
    }


class History:
    """Writes, and dry runs between them."""

    def __init__(self, db: Database, uid: str) -> None:
        self._db, self._uid = db, uid
        self._kept = KeptInventory(db)
        self._open = AsyncExitStack()

    async def take(self, step: Step) -> None:
        match step:
            case "add", host:
                if not await rows(self._db, "select 1 from workers where name = $1", host):
                    await add_host(self._db, host, gpus=2)
            case "begin", change, host:
                await self._open.aclose()  # a row is locked but once
                connection = await self._open.enter_async_context(self._db.transaction())
                await connection.execute(CHANGES[change], host)
            case ("commit",):
                await self._open.aclose()
            case "start", name, host, gpu, gib:
                await self._start(name, f"GPU-{host}-{gpu}", gib * GIB)
            case "end", name:
                await self._write("delete from claims where instance_id = $1", name)
            case change, host:
                await self._write(CHANGES[change], host)
            case (what,):
                await self._read(what)

    async def _read(self, what: str) -> None:
        match what:
            case "rest":
                self._kept.clear()
            case "leave":
                await self._leave()
            case _:
                await self.look(change=what == "dry run", others=what == "two")

    async def _write(self, statement: str, *args: Any) -> None:
        await self._open.aclose()
        async with self._db.transaction() as connection:
            await connection.execute(statement, *args)

    async def _start(self, name: str, gpu: str, mib: int) -> None:
        await self._open.aclose()
        if await rows(self._db, "select 1 from devices where uuid = $1", gpu):
            if not await rows(self._db, "select 1 from instances where id = $1", name):
                await add_instance(self._db, self._uid, name, phase="running", epoch=1)
            if not await rows(self._db, "select 1 from claims where instance_id = $1 and device = $2", name, gpu):
                free = "select 1 from devices where uuid = $1 and memory_mib - reserved_mib - claimed_mib >= $2"
                if await rows(self._db, free, gpu, mib):
                    await claim(self._db, gpu, name, mib)

    async def _leave(self) -> None:
        """A client that leaves while its dry run reads."""

        async def dry_run() -> None:
            async with self._kept.snapshot():
                pass

        leaving = asyncio.create_task(dry_run())
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait([leaving])

    async def look(self, *, change: bool = False, others: bool = False) -> None:
        ids = [row["id"] for row in await rows(self._db, "select id from instances order by id")]
        async with self._kept.snapshot() as moment:
            if others:  # a later moment is read before this one is used
                await self._write("update workers set cordoned = not cordoned")
                async with self._kept.snapshot():
                    pass
            fresh = InventoryCache()
            await fresh.refresh(moment.connection)
        assert picture(moment.cache, ids) == picture(fresh, ids)
        if change:
            spoil(moment.cache)


def spoil(cache: InventoryCache) -> None:
    """What dry runs do to their inventory, and more."""
    ask = Ask("planned", "d", (Layout(1, GIB, exclusive=False),), host_memory_mib=GIB)
    placed = place(cache.inventory, [ask.for_instance(f"p{n}") for n in range(3)])
    cache.inventory.exclude([c for one in placed if isinstance(one, Placed) for c in one.claims])
    cache.inventory.remove_load([f"i{n}" for n in range(4)])
    cache.inventory.remove_workers([worker.id for worker in cache.inventory.workers.entries[:1]])
    list(cache.holdings.replace(list(cache.inventory.gpus.uuid), []))


async def one_example(db: Database, history: list[Step]) -> None:
    async with db.connection() as connection:
        await connection.execute(EMPTY)
    here = History(db, await add_deployment(db, "d"))
    await add_host(db, "w0", gpus=2)
    try:
        for step in history:
            await here.take(step)
        await here.look()
        await here.take(("commit",))
        await here.look()
    finally:
        await here.take(("commit",))


async def test_nothing_is_kept_from_before_a_failover(migrated: Database) -> None:
    """A row that goes back to what it was counts as unchanged: no transaction wrote it."""
    await add_host(migrated, "w0", gpus=1)
    kept = KeptInventory(migrated)
    async with kept.snapshot() as moment:
        assert not moment.cache.inventory.gpus.cordoned.any()
    async with migrated.transaction() as connection:
        await connection.execute("alter table devices disable trigger devices_stamp")  # of a change
        await connection.execute("update devices set cordoned = true where kind = 'gpu'")
        await connection.execute("alter table devices enable trigger devices_stamp")
    async with kept.snapshot() as moment:
        assert not moment.cache.inventory.gpus.cordoned.any(), "it is not seen by its stamp"
    async with migrated.transaction() as connection:
        await connection.execute("update lease set term = term + 1")
    async with kept.snapshot() as moment:
        assert moment.cache.inventory.gpus.cordoned.any()


@asynccontextmanager
async def place_of(postgres: PostgresServer, template: str) -> AsyncIterator[Database]:
    async with migrated_database(postgres, template) as db:
        yield db


def test_a_kept_inventory_is_what_a_fresh_read_finds(postgres: PostgresServer, template: str) -> None:
    with asyncio.Runner() as runner:
        here = place_of(postgres, template)
        db = runner.run(here.__aenter__())
        try:

            @plan_settings()
            @given(st.lists(steps, min_size=4, max_size=25))
            def same(history: list[Step]) -> None:
                runner.run(one_example(db, history))

            same()
        finally:
            runner.run(here.__aexit__(None, None, None))
