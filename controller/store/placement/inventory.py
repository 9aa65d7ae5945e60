"""Workers, devices and claims for the inventory: everything once, then only what changed.

Each row of workers and devices carries the transaction that last wrote it. A read returns the rows written by
transactions that the snapshot before could not see as finished, so it misses none, whatever the order of commits.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.admission import HeldClaim
from controller.domain.placement import ContainerRuntime, DeviceState, PlannedClaim, WorkerFacts
from controller.store.core.database import Row, row_mapper

FROM_THE_START: Final = "0"
planned_claim = row_mapper(PlannedClaim)
# Each changed row carries the horizon. If none changed, the old horizon still holds.
_WORKERS: Final = """
    select id, name, phase, cordoned, draining, deleted_at, os, arch, driver, simulated, labels, engines, runtimes,
           gpus_known, proxy_address, conditions @> '[{"type": "DiskPressure"}]' as disk_full,
           pg_snapshot_xmin(pg_current_snapshot())::text as horizon
      from workers where changed >= $1::text::xid8"""
_DEVICES: Final = """
    select d.*, w.deleted_at is not null as orphaned, pg_snapshot_xmin(pg_current_snapshot())::text as horizon
      from devices d join workers w on w.id = d.worker_id
     where d.changed >= $1::text::xid8"""
_CLAIMS: Final = """
    select c.instance_id, i.deployment_uid, c.device, d.worker_id, d.kind, c.rank, c.memory_mib, c.cpu_milli,
           c.exclusive, c.position, c.rendezvous_port
      from claims c join instances i on i.id = c.instance_id join devices d on d.uuid = c.device
     where c.device = any($1)"""


@dataclass(frozen=True, slots=True)
class InventoryChanges:
    """What was written since a horizon.

    Attributes:
        workers: present state of the workers that changed; `deleted_workers` are the ids of those that were deleted.
        devices: present state of the devices that changed; `orphaned_devices` are the UUIDs of deleted workers' ones.
        device_uuids: all devices that changed, orphaned ones included.
        claims: all claims on those devices, each with its instance.
        horizon: for the next read.
    """

    workers: Iterable[WorkerFacts]
    deleted_workers: Collection[str]
    devices: Iterable[DeviceState]
    orphaned_devices: Collection[str]
    device_uuids: Collection[str]
    claims: Iterable[tuple[str, HeldClaim]]
    horizon: str


async def read_changes(connection: Any, horizon: str) -> InventoryChanges:
    """Reads what was written since `horizon`. The connection must be in one REPEATABLE READ transaction."""
    workers = await connection.fetch(_WORKERS, horizon)
    devices = await connection.fetch(_DEVICES, horizon)
    uuids = [row["uuid"] for row in devices]
    claims = await connection.fetch(_CLAIMS, uuids) if uuids else []
    return InventoryChanges(
        workers=(_worker(row) for row in workers if row["deleted_at"] is None),
        deleted_workers=[str(row["id"]) for row in workers if row["deleted_at"] is not None],
        devices=(_device(row) for row in devices if not row["orphaned"]),
        orphaned_devices=[row["uuid"] for row in devices if row["orphaned"]],
        device_uuids=uuids,
        claims=_held(claims),
        horizon=next((row["horizon"] for row in (*workers, *devices)), horizon),
    )


def _held(rows: Iterable[Row]) -> Iterator[tuple[str, HeldClaim]]:
    for row in rows:
        yield (
            row["instance_id"],
            HeldClaim(
                deployment_uid=str(row["deployment_uid"]),
                worker_id=str(row["worker_id"]),
                gpu=row["kind"] == "gpu",
                claim=planned_claim(row),
                rendezvous_port=row["rendezvous_port"],
            ),
        )


def _worker(row: Row) -> WorkerFacts:
    return WorkerFacts(
        id=str(row["id"]),
        name=row["name"],
        ready=row["phase"] == "ready" and row["gpus_known"],
        schedulable=not row["cordoned"] and not row["draining"],
        disk_full=row["disk_full"],
        os=row["os"],
        arch=row["arch"],
        driver=row["driver"],
        simulated=row["simulated"],
        labels=row["labels"],
        engines=None if row["engines"] is None else frozenset(row["engines"]),
        containers=_containers(row["runtimes"]),
        host=row["proxy_address"].rpartition(":")[0].strip("[]"),
    )


def _containers(runtimes: Iterable[dict[str, Any]]) -> ContainerRuntime | None:
    docker = next((one for one in runtimes if one["name"] == "docker"), None)
    return None if docker is None else ContainerRuntime(docker["usable"], docker["gpus"], docker["reason"])


def _device(row: Row) -> DeviceState:
    capability = row["compute_capability"]
    return DeviceState(
        uuid=row["uuid"],
        worker_id=str(row["worker_id"]),
        kind=row["kind"],
        index=row["index"],
        model=row["model"],
        compute_capability=_capability(capability) if capability else None,
        memory_mib=row["memory_mib"],
        cpu_milli=row["cpu_milli"],
        claimed_mib=row["claimed_mib"],
        claimed_cpu_milli=row["claimed_cpu_milli"],
        claims=row["claims"],
        exclusive_claims=row["exclusive_claims"],
        healthy=row["health"] == "ok" and row["present"],
        mig_mode=row["mig_mode"],
        vendor=row["vendor"] if row["kind"] == "gpu" else "",
        reserved_mib=row["reserved_mib"],
        foreign_mib=row["foreign_mib"],
        parent=row["parent"],
        cordoned=row["cordoned"],
    )


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)
