"""Messages of agents, with default values."""

from collections.abc import Iterable, Sequence
from typing import Any

from schemas.wire import Hello, Inventory, ProcessReport, ReportedGpu, ReportedHost

GIB = 1024


def gpu(uuid_: str, gib: int = 80, **fields: Any) -> ReportedGpu:
    return ReportedGpu(uuid=uuid_, index=0, model="H100", memory_mib=gib * GIB, compute_capability="9.0", **fields)


def inventory(gpus: Sequence[ReportedGpu] | None = (), *, host_gib: int = 1024, **host: Any) -> Inventory:
    defaults = {"os": "linux", "arch": "x86_64", "hostname": "h", "driver": "580.95", "cpu_milli": 64_000}
    shape = ReportedHost(**{**defaults, "memory_mib": host_gib * GIB, **host})
    return Inventory(host=shape, gpus=None if gpus is None else tuple(gpus))


def process(instance: str, state: str = "running", *, seq: int = 1, epoch: int = 1, **fields: Any) -> ProcessReport:
    given: dict[str, Any] = {"instance": instance, "epoch": epoch, "seq": seq, "state": state, "pid": 4711, **fields}
    return ProcessReport(**given)


def hello(
    gpus: Sequence[ReportedGpu] | None = (),
    *,
    processes: Iterable[ProcessReport] = (),
    boot_id: str = "boot-1",
    shape: Inventory | None = None,
    **fields: Any,
) -> Hello:
    given: dict[str, Any] = {
        "agent_version": "1",
        "boot_id": boot_id,
        "proxy_port": 7070,
        "inventory": shape or inventory(gpus),
        "processes": tuple(processes),
        **fields,
    }
    return Hello(**given)
