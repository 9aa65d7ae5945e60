"""The cordon of one GPU, as the database keeps it."""

from typing import Any

import pytest

from controller.domain.devices import DeviceRow
from controller.store.core.database import Database
from controller.store.core.refusals import NotFoundError
from controller.store.placement.pass_reads import FROM_THE_START, read_changes
from controller.store.views.gpus import gpu_by_uuid
from controller.store.workers.devices import lock_devices, read_dismissed, set_gpu_cordon, write_devices
from support.database.ledger import GIB, add_deployment, add_host, add_instance, claim

UUID = "GPU-w-0"


async def execute(db: Database, query: str, *args: Any) -> None:
    async with db.transaction() as connection:
        await connection.execute(query, *args)


async def events(db: Database) -> list[tuple[str, list[str]]]:
    async with db.connection() as connection:
        rows = await connection.fetch("select reason, objects from events order by id")
    return [(row["reason"], row["objects"]) for row in rows]


async def dismissed(db: Database, worker: str) -> dict[str, int]:
    async with db.connection() as connection:
        return (await read_dismissed(connection, [worker])).get(worker, {})


async def test_it_stays_whatever_the_agent_reports(migrated: Database) -> None:
    host = await add_host(migrated, "w", gpus=2)
    uid = await add_deployment(migrated, "d")
    await add_instance(migrated, uid, "d-1", phase="running", epoch=1)
    await claim(migrated, UUID, "d-1", GIB)
    view = await set_gpu_cordon(migrated, UUID, "cordon")
    assert (view.spec.cordoned, view.status.health, len(view.status.claims)) == (True, "ok", 1), "what runs stays"
    await set_gpu_cordon(migrated, UUID, "cordon")
    assert await events(migrated) == [("gpu_cordoned", [f"gpu:{UUID}", f"worker:{host.id}", "instance:d-1"])]
    async with migrated.transaction() as connection:
        known = await lock_devices(connection, host.id, [])
        rows = [device.row for device in known if device.row.uuid == UUID]
        assert isinstance(rows[0], DeviceRow)
        await write_devices(connection, host.id, rows, known)
    async with migrated.snapshot() as connection:
        devices = {one.uuid: one for one in (await read_changes(connection, FROM_THE_START)).devices}
        assert (await gpu_by_uuid(connection, UUID)).spec.cordoned
    assert (devices[UUID].cordoned, devices["GPU-w-1"].cordoned) == (True, False)
    assert not (await set_gpu_cordon(migrated, UUID, "uncordon")).spec.cordoned
    assert [reason for reason, _ in await events(migrated)] == ["gpu_cordoned", "gpu_uncordoned"]


async def test_the_end_of_a_cordon_dismisses_an_xid_once(migrated: Database) -> None:
    host = await add_host(migrated, "w", gpus=2)
    await set_gpu_cordon(migrated, UUID, "uncordon")
    assert (await events(migrated), await dismissed(migrated, host.id)) == ([], {}), "nothing was to be ended"
    await execute(
        migrated, "update devices set health = 'unhealthy', health_reason = 'xid_48: x' where uuid = $1", UUID
    )
    await set_gpu_cordon(migrated, UUID, "uncordon")
    assert await dismissed(migrated, host.id) == {UUID: 1}
    ((reason, _),) = await events(migrated)
    assert reason == "gpu_uncordoned"


async def test_a_gpu_in_mig_mode_stands_for_its_slices(migrated: Database) -> None:
    host = await add_host(migrated, "w", gpus=2)
    await execute(migrated, "update devices set mig_mode = true where uuid = $1", UUID)
    await execute(migrated, "update devices set parent = $1 where uuid = 'GPU-w-1'", UUID)
    await set_gpu_cordon(migrated, UUID, "cordon")
    new = DeviceRow("MIG-new", "gpu", 0, "H100 MIG", None, 1024, 1024, 0, "ok", "", False, True, parent=UUID)
    async with migrated.transaction() as connection:
        await write_devices(connection, host.id, [new], await lock_devices(connection, host.id, ["MIG-new"]))
    async with migrated.snapshot() as connection:
        for uuid in (UUID, "GPU-w-1", "MIG-new"):
            assert (await gpu_by_uuid(connection, uuid)).spec.cordoned, uuid
    await set_gpu_cordon(migrated, "MIG-new", "uncordon")
    async with migrated.snapshot() as connection:
        assert not (await gpu_by_uuid(connection, "MIG-new")).spec.cordoned
        assert (await gpu_by_uuid(connection, UUID)).spec.cordoned


async def test_only_known_gpus(migrated: Database) -> None:
    host = await add_host(migrated, "w", gpus=1)
    for name in ("GPU-none", f"host-{host.id}"):
        with pytest.raises(NotFoundError):
            await set_gpu_cordon(migrated, name, "cordon")
