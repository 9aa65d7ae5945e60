"""Rows as the API shows them: pages, workers, free memory, and unknown values."""

import uuid
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller.domain.events import NewEvent
from controller.leader.placement_passes import InventoryCache
from controller.live.endpoints import EndpointReader
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.core.refusals import InUseError, NotFoundError
from controller.store.views.deployments import list_deployments
from controller.store.views.events import EventFilter, list_events, objects_named
from controller.store.views.gpus import gpu_by_uuid, list_gpus
from controller.store.views.instances import instance_by_id, list_instances, log_source
from controller.store.views.leader import read_leader
from controller.store.views.metrics import read_figures
from controller.store.views.paging import BadCursorError
from controller.store.views.workers import list_workers, worker_by_name
from controller.store.workers.maintenance import WorkerVerb, delete_worker, set_maintenance
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim, report


async def execute(db: Database, query: str, *args: Any) -> None:
    async with db.transaction() as connection:
        await connection.execute(query, *args)


async def placed(db: Database, *, instances: int = 1) -> str:
    """A worker `w` with two GPUs, and a deployment `d` with instances on the first."""
    host = await add_host(db, "w", gpus=2, gib=40)
    uid = await add_deployment(db, "d", replicas=instances)
    for n in range(instances):
        await add_instance(db, uid, f"d-{n}", phase="running", epoch=1)
        await claim(db, "GPU-w-0", f"d-{n}", 8 * GIB)
        await claim(db, f"host-{host.id}", f"d-{n}", GIB)
        await report(db, f"d-{n}", "running")
    return uid


async def all_pages(read: Callable[[str | None], Awaitable[Any]]) -> list[str]:
    names: list[str] = []
    cursor = None
    while True:
        page = await read(cursor)
        names.extend(item.name for item in page.items)
        cursor = page.next
        if cursor is None:
            return names
        assert page.items


async def test_pages_follow_one_another_without_gap_or_repetition(migrated: Database) -> None:
    for name in ("b", "w"):
        await add_host(migrated, name, gpus=3)
    uids = [await add_deployment(migrated, f"d{n}") for n in range(7)]
    for n in range(7):
        await add_instance(migrated, uids[n], f"i{n}")
    async with migrated.snapshot() as c:
        assert await all_pages(lambda at: list_deployments(c, limit=3, cursor=at)) == [f"d{n}" for n in range(7)]
        assert await all_pages(lambda at: list_instances(c, limit=2, cursor=at)) == [f"i{n}" for n in range(7)]
        assert await all_pages(lambda at: list_workers(c, limit=1, cursor=at)) == ["b", "w"]
        gpus = [f"GPU-{worker}-{n}" for worker in ("b", "w") for n in range(3)]
        assert await all_pages(lambda at: list_gpus(c, limit=2, cursor=at)) == gpus
        assert await all_pages(lambda at: list_gpus(c, limit=2, cursor=at, worker="w")) == gpus[3:]
        assert await all_pages(lambda at: list_instances(c, limit=2, cursor=at, deployment="d3")) == ["i3"]
        assert await all_pages(lambda at: list_instances(c, limit=2, cursor=at, worker="w")) == []


@pytest.mark.parametrize("cursor", ["x", "%%%", "WzFd", "bnVsbA", "W10"])
async def test_an_unknown_cursor_is_refused(migrated: Database, cursor: str) -> None:
    async with migrated.snapshot() as c:
        with pytest.raises(BadCursorError, match="cursor"):
            await list_deployments(c, limit=3, cursor=cursor)


async def test_an_instance_shows_where_it_is_and_what_it_holds(migrated: Database) -> None:
    await placed(migrated)
    async with migrated.snapshot() as c:
        view = await instance_by_id(c, "d-0")
        with pytest.raises(NotFoundError):
            await instance_by_id(c, "unknown")
    assert view.status.worker == "w"
    assert view.status.gpus == ["GPU-w-0"]
    assert [(one.kind, one.memory_mib) for one in view.status.claims] == [("gpu", 8 * GIB), ("host", GIB)]
    assert (view.spec.deployment, view.spec.engine, view.generation) == ("d", "simulated", 1)


async def test_a_fenced_epoch_does_not_count_as_its_place(migrated: Database) -> None:
    await placed(migrated)
    await add_host(migrated, "other", gpus=1)
    await execute(migrated, "update instances set epoch = 2, phase = 'unreachable' where id = 'd-0'")
    await claim(migrated, "GPU-other-0", "d-0", GIB, epoch=2)
    async with migrated.snapshot() as c:
        view = await instance_by_id(c, "d-0")
    assert (view.status.worker, view.status.gpus) == ("other", ["GPU-other-0"])
    assert len(view.status.claims) == 3


async def test_a_gpu_shows_its_claims_and_only_fresh_readings(migrated: Database) -> None:
    await placed(migrated, instances=2)
    await execute(migrated, "insert into device_readings values ('GPU-w-0', 512, 37.5, now())")
    await execute(migrated, "insert into device_readings values ('GPU-w-1', 512, 0, now() - interval '2 min')")
    async with migrated.snapshot() as c:
        busy, silent = await gpu_by_uuid(c, "GPU-w-0"), await gpu_by_uuid(c, "GPU-w-1")
        figures = await read_figures(c)
    assert busy.status.free_mib == 24 * GIB
    assert [(one.instance, one.deployment, one.memory_mib) for one in busy.status.claims] == [
        ("d-0", "d", 8 * GIB), ("d-1", "d", 8 * GIB)
    ]  # fmt: skip
    assert (busy.status.used_mib, busy.status.utilization) == (512, 37.5)
    assert (silent.status.used_mib, silent.status.utilization) == (None, None), "old is unknown, not zero"
    assert figures.utilization == {("w", "GPU-w-0"): 0.375}
    assert figures.claimed_bytes == {("w", "GPU-w-0", "d"): 16 * 2**30}
    assert figures.instances == {"running": 2}
    assert figures.workers == {"ready": 1}


async def test_free_memory_is_what_placement_can_claim(migrated: Database) -> None:
    await placed(migrated)
    await execute(migrated, "update devices set reserved_mib = 2048")
    await execute(migrated, "update devices set foreign_mib = 1024 where uuid = 'GPU-w-0'")
    async with migrated.snapshot() as c:
        gpu, worker = (await gpu_by_uuid(c, "GPU-w-0")).status, (await worker_by_name(c, "w")).status
        cache = InventoryCache()
        await cache.refresh(c)
        free = cache.inventory.gpus.free[0]
    assert gpu.free_mib == free == 40 * GIB - 8 * GIB - 3 * GIB
    assert (gpu.claimed_mib, gpu.reserved_mib, gpu.foreign_mib) == (8 * GIB, 2 * GIB, GIB)
    assert (worker.claimed_mib, worker.free_mib) == (8 * GIB, gpu.free_mib + 38 * GIB)
    assert (worker.host_memory_mib, worker.free_host_memory_mib) == (1024 * GIB, 1024 * GIB - GIB - 2 * GIB)


async def test_an_operators_flags_take_precedence_in_a_workers_state(migrated: Database) -> None:
    await placed(migrated)
    acts: tuple[WorkerVerb, ...] = ("cordon", "drain", "cordon", "uncordon")
    states = [(await set_maintenance(migrated, "w", act)).status.state for act in acts]
    assert states == ["cordoned", "draining", "draining", "ready"]
    await set_maintenance(migrated, "w", "drain")
    await execute(migrated, "update instances set phase = 'stopping'")
    await execute(migrated, "delete from claims")
    async with migrated.snapshot() as c:
        view = await worker_by_name(c, "w")
    assert view.status.state == "drained"
    assert (view.status.gpus, view.status.memory_mib, view.status.free_mib) == (2, 80 * GIB, 80 * GIB)


async def test_a_worker_with_claims_is_deleted_only_if_confirmed_dead(migrated: Database) -> None:
    await placed(migrated)
    with pytest.raises(InUseError, match="--confirm-dead"):
        await delete_worker(migrated, "w")
    liveness = (
        "insert into worker_liveness (worker_id, session, connected, last_seen) select id, 1, true, now() from workers"
    )
    await execute(migrated, liveness)
    with pytest.raises(InUseError, match="not dead; stop its agent"):
        await delete_worker(migrated, "w", confirm_dead=True)
    await execute(migrated, "update worker_liveness set last_seen = now() - interval '1 min'")
    await delete_worker(migrated, "w", confirm_dead=True)
    async with migrated.snapshot() as c:
        view = await worker_by_name(c, "w")
        assert view.status.state == "deleted", "shown while it still holds something"
        assert await c.fetchval("select confirmed_dead is not null from workers")
    await execute(migrated, "delete from claims")
    async with migrated.snapshot() as c:
        with pytest.raises(NotFoundError):
            await worker_by_name(c, "w")
        assert (await list_gpus(c, limit=10)).items == []


async def test_logs_come_from_the_last_worker(migrated: Database) -> None:
    uid = await placed(migrated)
    await add_instance(migrated, uid, "d-new")
    await execute(migrated, "update workers set proxy_address = '127.0.0.1:1'")
    await execute(migrated, "delete from claims where instance_id = 'd-0'")
    async with migrated.snapshot() as c:
        source = await log_source(c, "d-0")
        assert source is not None
        assert (source.worker, source.address, source.secret.plain) == ("w", "127.0.0.1:1", "s")
        assert await log_source(c, "d-new") is None
        with pytest.raises(NotFoundError):
            await log_source(c, "unknown")


async def test_only_running_instances_of_live_deployments_serve(migrated: Database) -> None:
    await placed(migrated, instances=2)
    await execute(migrated, "update workers set proxy_address = '127.0.0.1:1'")
    await execute(migrated, "update instances set phase = 'unhealthy' where id = 'd-1'")
    await add_deployment(migrated, "idle")
    async with migrated.snapshot() as c:
        serving, endpoints = await EndpointReader().read(c)
    assert (serving.names, serving.stopped) == ({"d", "idle"}, {})
    assert [(one.model, one.instance, one.request_model) for one in endpoints] == [("d", "d-0", None)]
    await execute(migrated, "update deployments set deleted_at = now() where name = 'd'")
    async with migrated.snapshot() as c:
        serving, endpoints = await EndpointReader().read(c)
    assert (serving.names, endpoints) == ({"idle"}, [])


async def test_an_endpoint_has_its_servers_model_name(migrated: Database) -> None:
    await placed(migrated)
    await execute(migrated, "update workers set proxy_address = '127.0.0.1:1'")
    spec = '{"engine": "transformers", "model": "path:/models/tiny"}'
    await execute(migrated, "update revisions set spec = $1::text::jsonb", spec)
    async with migrated.snapshot() as c:
        _, (endpoint,) = await EndpointReader().read(c)
    assert endpoint.request_model == "/models/tiny"


async def test_events_are_found_by_object_reason_and_id(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    async with migrated.transaction() as c:
        await write_events(c, [NewEvent(f"r{n % 2}", f"m{n}", (f"deployment:{uid}", "gpu:G")) for n in range(6)])
        await write_events(c, [NewEvent("other", "m6", (f"worker:{uuid.uuid4()}",), {"a": 1})])
    async with migrated.snapshot() as c:
        about = await objects_named(c, "deployment", "d")
        newest = await list_events(c, limit=2, wanted=EventFilter([about]))
        assert [event.message for event in newest.items] == ["m5", "m4"]
        older = await list_events(c, limit=10, wanted=EventFilter([about]), cursor=newest.next)
        assert [event.message for event in older.items] == ["m3", "m2", "m1", "m0"]
        odd = await list_events(c, limit=10, wanted=EventFilter(reasons=["r1"]))
        assert [e.message for e in odd.items] == ["m5", "m3", "m1"]
        both = await list_events(c, limit=10, wanted=EventFilter(reasons=["r1", "other"]))
        of_all = await list_events(c, limit=10, wanted=EventFilter(about=[["worker:missing"]], reasons=["r1"]))
        assert of_all.items == []
        assert [e.message for e in both.items] == ["m6", "m5", "m3", "m1"]
        since = await list_events(c, limit=10, wanted=EventFilter(since_id=newest.items[0].id))
        assert [(event.message, event.evidence) for event in since.items] == [("m6", {"a": 1})]


async def test_events_are_found_by_time_and_by_all_objects_at_once(migrated: Database) -> None:
    uid = await add_deployment(migrated, "d")
    async with migrated.transaction() as c:
        for n, objects in enumerate([("gpu:G",), (f"deployment:{uid}",), (f"deployment:{uid}", "gpu:G")]):
            await write_events(c, [NewEvent("r", f"m{n}", objects)])
    await execute(migrated, "update events set at = '2026-01-01T00:00:00Z' where message <> 'm2'")
    await execute(migrated, "update events set at = '2026-01-01T00:00:01Z' where message = 'm1'")

    async def found(**asked: Any) -> list[str]:
        async with migrated.snapshot() as c:
            return [e.message for e in (await list_events(c, limit=10, wanted=EventFilter(**asked))).items]

    assert await found(after=datetime(2026, 1, 1, tzinfo=UTC)) == ["m2", "m1"]
    assert await found(after=timedelta(minutes=1)) == ["m2"]
    assert await found(about=[[f"deployment:{uid}"], ["gpu:G"]]) == ["m2"]
    assert await found(about=[[f"deployment:{uid}", "gpu:G"]]) == ["m2", "m1", "m0"]


async def test_events_of_what_is_gone_are_found_by_its_name(migrated: Database) -> None:
    first, second = await add_deployment(migrated, "d"), str(uuid.uuid4())
    async with migrated.transaction() as c:
        await write_events(c, [NewEvent("applied", "m", (f"deployment:{second}",), {"deployment": "e"})])
        assert await objects_named(c, "deployment", "e") == ["deployment:e"]
        for uid, name in ((str(first), "d"), (second, "e")):
            await write_events(c, [NewEvent("finished", "gone", (f"deployment:{uid}",), {"deployment": name})])
        assert await objects_named(c, "deployment", "e") == [f"deployment:{second}"]
        assert await objects_named(c, "deployment", "d") == [f"deployment:{first}"]  # it lives again
        await c.execute("set local enable_seqscan = off")
        plan = await c.fetch("explain select 1 from events where reason in ('finished', 'policy_deleted') "
                             "and subjects -> 0 ->> 'name' = 'e'")  # fmt: skip
    assert "events_gone" in str(plan)


async def test_without_a_term_the_lease_has_no_holder(migrated: Database) -> None:
    async with migrated.snapshot() as c:
        view = await read_leader(c, leading=False)
    assert (view.term, view.holder, view.renewed_at) == (0, "", None)
