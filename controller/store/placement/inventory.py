"""The inventory as the ledger has it: read whole once, then only what changed.

Each row of workers and devices carries the transaction that last wrote it. A refresh reads the rows written by
transactions that the snapshot before could not yet see as finished, so none is missed however commits interleave.
"""

from collections.abc import Collection
from typing import Any, Final

from controller.domain.placement import DeviceState, WorkerFacts
from controller.scheduling.inventory.inventory import Inventory
from controller.store.placement.holdings import Holdings, Row, load_of

# A horizon comes with each row that changed. Where none did, the old one is as good.
_WORKERS: Final = """
    select id, name, phase, cordoned, draining, deleted_at, os, arch, driver, simulated, labels, engines, gpus_known,
           proxy_address, pg_snapshot_xmin(pg_current_snapshot())::text as horizon
      from workers where changed >= $1::text::xid8"""
_DEVICES: Final = """
    select d.*, w.deleted_at is not null as orphaned, pg_snapshot_xmin(pg_current_snapshot())::text as horizon
      from devices d join workers w on w.id = d.worker_id
     where d.changed >= $1::text::xid8"""
_CLAIMS: Final = """
    select c.instance_id, i.deployment_uid, c.device, d.worker_id, d.kind, c.rank, c.memory_mib, c.cpu_milli,
           c.exclusive, c.position
      from claims c join instances i on i.id = c.instance_id join devices d on d.uuid = c.device
     where c.device = any($1)"""
_DEVICES_WITHOUT: Final = """
    select d.uuid, d.worker_id, d.kind, d.index, d.model, d.compute_capability, d.memory_mib, d.cpu_milli, d.health,
           d.present, d.mig_mode, d.vendor, d.reserved_mib, d.foreign_mib, d.claimed_mib - x.mib as claimed_mib,
           d.claimed_cpu_milli - x.cpu as claimed_cpu_milli, d.claims - x.n as claims,
           d.exclusive_claims - x.excl as exclusive_claims, x.instances
      from devices d
      join workers w on w.id = d.worker_id and w.deleted_at is null
      join (select c.device, sum(c.memory_mib)::bigint as mib, sum(c.cpu_milli)::bigint as cpu, count(*) as n,
                   count(*) filter (where c.exclusive) as excl, array_agg(c.instance_id) as instances
              from claims c join instances i on i.id = c.instance_id
             where i.deployment_uid = any($1::uuid[]) group by c.device) x on x.device = d.uuid"""
_FROM_THE_START: Final = "0"


class InventoryCache:
    """An `Inventory` kept up to date by reading changes. For one reader at a time."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.holdings = Holdings()
        self._horizon = _FROM_THE_START

    async def refresh(self, connection: Any) -> None:
        """Takes over what changed. The connection must be in one REPEATABLE READ transaction."""
        workers = await connection.fetch(_WORKERS, self._horizon)
        devices = await connection.fetch(_DEVICES, self._horizon)
        if devices:
            uuids = [row["uuid"] for row in devices]
            claims = await connection.fetch(_CLAIMS, uuids)
            for instance, holding in self.holdings.take_over(uuids, claims):
                if holding is None:
                    self.inventory.remove_load([instance])
                else:
                    self.inventory.upsert_load([load_of(instance, holding)])
        self.inventory.upsert_workers(_worker(row) for row in workers if row["deleted_at"] is None)
        self.inventory.remove_workers(str(row["id"]) for row in workers if row["deleted_at"] is not None)
        self.inventory.upsert_devices(_device(row) for row in devices if not row["orphaned"])
        self.inventory.remove_devices(row["uuid"] for row in devices if row["orphaned"])
        self._horizon = next((row["horizon"] for row in (*workers, *devices)), self._horizon)


async def read_inventory(connection: Any, *, without: Collection[str] = ()) -> InventoryCache:
    """A fresh inventory of this moment with who holds what, for who plans without writing.

    Args:
        connection: in one REPEATABLE READ transaction.
        without: uids of deployments whose claims are thought away, as if what they run had ended.
    """
    cache = InventoryCache()
    await cache.refresh(connection)
    freed = await connection.fetch(_DEVICES_WITHOUT, list(without)) if without else []
    cache.inventory.upsert_devices(_device(row) for row in freed)
    cache.inventory.remove_load({instance for row in freed for instance in row["instances"]})
    return cache


def _worker(row: Row) -> WorkerFacts:
    return WorkerFacts(
        id=str(row["id"]),
        name=row["name"],
        ready=row["phase"] == "ready" and row["gpus_known"],
        schedulable=not row["cordoned"] and not row["draining"],
        os=row["os"],
        arch=row["arch"],
        driver=row["driver"],
        simulated=row["simulated"],
        labels=row["labels"],
        engines=None if row["engines"] is None else frozenset(row["engines"]),
        host=row["proxy_address"].rpartition(":")[0].strip("[]"),
    )


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
    )


def _capability(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor or 0)
