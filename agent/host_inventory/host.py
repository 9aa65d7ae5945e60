"""Properties of the host: system, memory, CPUs, boot id."""

import os
import platform
import socket
from pathlib import Path

import psutil

from schemas.simulated import SimulatedWorker
from schemas.wire import ReportedHost

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id() -> str:
    """The kernel's id of this boot, also for simulated hosts, so that adoption works on them."""
    return _BOOT_ID.read_text(encoding="ascii").strip()


def real_host(labels: dict[str, str], reserved_mib: int = 0) -> ReportedHost:
    """`reserved_mib`: memory for other uses. The driver is read with the GPUs."""
    return ReportedHost(
        os=platform.system().lower(),
        arch=platform.machine().lower(),
        hostname=socket.gethostname(),
        memory_mib=psutil.virtual_memory().total // 2**20,
        reserved_mib=reserved_mib,
        cpu_milli=(os.cpu_count() or 1) * 1000,
        labels=labels,
    )


def simulated_host(worker: SimulatedWorker, labels: dict[str, str], reserved_mib: int | None = None) -> ReportedHost:
    """Labels and reserved memory of the settings override the file's."""
    return ReportedHost(
        os=worker.os,
        arch=worker.arch.lower(),
        hostname=worker.name,
        driver=worker.driver,
        memory_mib=worker.host_memory,
        reserved_mib=worker.reserved.host_memory if reserved_mib is None else reserved_mib,
        cpu_milli=worker.cpus * 1000,
        simulated=True,
        labels={**worker.labels, **labels},
        engines=worker.engines,
    )
