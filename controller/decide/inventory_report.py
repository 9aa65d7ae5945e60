"""How a worker's inventory report changes its device rows. Pure.

A report about the worker's own devices is never refused. Less memory makes a device unhealthy until its claims are
released, since the ledger must not hold less than is claimed. A GPU of another worker changes hands only if nothing can
run on it there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from controller.decide.gpu_flapping import with_losses
from controller.domain.devices import (
    MEMORY_SHRUNK,
    MISSING,
    UNREADABLE,
    DeviceChanges,
    DeviceRow,
    KnownDevice,
    host_uuid,
)
from schemas.wire import Inventory, ReportedGpu, ReportedHost


def compare_inventory(worker_id: str, inventory: Inventory, known: Iterable[KnownDevice]) -> DeviceChanges:
    """The changes between an inventory and the stored rows.

    `known`: the worker's own rows, and other workers' rows with a reported UUID.
    """
    by_uuid = {device.row.uuid: device for device in known}
    host = _host_row(worker_id, inventory.host, by_uuid.get(host_uuid(worker_id)))
    gpus = compare_gpus(worker_id, inventory.gpus, by_uuid, inventory.gpus_error)
    return replace(gpus, rows=(*_changed([host], by_uuid, worker_id), *gpus.rows))


def compare_gpus(
    worker_id: str, reported: Iterable[ReportedGpu] | None, by_uuid: Mapping[str, KnownDevice], error: str = ""
) -> DeviceChanges:
    """The changes between the reported GPUs (None: unreadable, for `error`) and the stored GPUs."""
    own = [d for d in by_uuid.values() if d.worker_id == worker_id and d.row.kind == "gpu"]
    if reported is None:
        unknown = [replace(d.row, health="unknown", health_reason=error or UNREADABLE) for d in own if d.row.present]
        return DeviceChanges(_changed(unknown, by_uuid, worker_id), (), (), gpus_known=False)
    rows: list[DeviceRow] = []
    refused: list[KnownDevice] = []
    reported_uuids: set[str] = set()
    for gpu in reported:
        device = by_uuid.get(gpu.uuid)
        reported_uuids.add(gpu.uuid)
        if device is not None and device.worker_id != worker_id and (device.claims or device.owner_holds_it):
            refused.append(device)
        else:
            rows.append(_gpu_row(gpu, device))
    gone = [d.row for d in own if d.row.uuid not in reported_uuids]
    rows += [replace(row, present=False, health="unhealthy", health_reason=MISSING) for row in gone]
    rows = with_losses(rows, by_uuid)
    missing = tuple(row.uuid for row in gone if row.present)
    sick = {d.row.uuid: d.row.health_reason for d in own if d.row.health == "unhealthy"}
    recovered = tuple((row.uuid, sick[row.uuid]) for row in rows if row.health == "ok" and row.uuid in sick)
    return DeviceChanges(
        _changed(rows, by_uuid, worker_id), tuple(refused), missing, gpus_known=True, recovered=recovered
    )


def _changed(rows: Iterable[DeviceRow], by_uuid: Mapping[str, KnownDevice], worker_id: str) -> tuple[DeviceRow, ...]:
    """The rows that differ from the stored ones, by uuid: the order in which devices are locked."""
    stored = {d.row.uuid: d.row for d in by_uuid.values() if d.worker_id == worker_id}
    return tuple(sorted((row for row in rows if stored.get(row.uuid) != row), key=lambda row: row.uuid))


def _gpu_row(gpu: ReportedGpu, device: KnownDevice | None) -> DeviceRow:
    memory_mib, shrunk = _memory(gpu.memory_mib, device)
    health, reason = gpu.health, gpu.health_reason
    if shrunk and health == "ok":
        health, reason = "unhealthy", MEMORY_SHRUNK
    return DeviceRow(
        uuid=gpu.uuid,
        kind="gpu",
        index=gpu.index,
        model=gpu.model,
        compute_capability=gpu.compute_capability,
        memory_mib=memory_mib,
        reported_mib=gpu.memory_mib,
        cpu_milli=0,
        health=health,
        health_reason=reason,
        mig_mode=gpu.mig_mode,
        present=True,
        vendor=gpu.vendor,
        reserved_mib=gpu.reserved_mib,
        parent=gpu.parent,
    )


def _host_row(worker_id: str, host: ReportedHost, device: KnownDevice | None) -> DeviceRow:
    memory_mib, shrunk = _memory(host.memory_mib, device)
    claimed_cpu = device.claimed_cpu_milli if device is not None else 0
    return DeviceRow(
        uuid=host_uuid(worker_id),
        kind="host",
        index=0,
        model="",
        compute_capability=None,
        memory_mib=memory_mib,
        reported_mib=host.memory_mib,
        # CPU can be overcommitted: with less CPU than is claimed everything is slower, but keeps working.
        cpu_milli=max(host.cpu_milli, claimed_cpu),
        health="unhealthy" if shrunk else "ok",
        health_reason=MEMORY_SHRUNK if shrunk else "",
        mig_mode=False,
        present=True,
        reserved_mib=host.reserved_mib,
    )


def _memory(reported_mib: int, device: KnownDevice | None) -> tuple[int, bool]:
    """The claimable memory in MiB, and whether the device has less than before."""
    if device is None:
        return reported_mib, False
    stored = device.row
    if reported_mib < stored.memory_mib:
        return (stored.memory_mib if device.claims else reported_mib), True
    if device.exclusive_claims:  # such a claim records all of the memory, which must not change while it lasts
        return stored.memory_mib, False
    # A device that shrank stays marked until `settle` finds it without claims; else its health would flap.
    unsettled = stored.health_reason == MEMORY_SHRUNK and reported_mib == stored.reported_mib
    return reported_mib, unsettled
