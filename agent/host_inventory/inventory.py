"""The inventory of this host: its properties, and its GPUs as last read."""

import asyncio
import dataclasses
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import structlog
from msgspec.structs import replace

from agent.clock import Clock, boot_clock
from agent.decide.engine_environment import passed_on
from agent.gpus.reader import GpuReader, GpuReading, GpuWork
from agent.host_inventory.engine_builds import EngineBuilds
from agent.host_inventory.installed_engines import PROGRAMS, installed_engines, program_of
from agent.processes.procfs import process_name
from agent.state.process_records import ProcessKey
from schemas.engine_builds import LLAMA_CPP_ON_CPU
from schemas.wire import ForeignProcess, Inventory, ReportedGpu, ReportedHost, ReportedRuntime
from schemas.worker_labels import with_agent_labels

_READ_LIMIT_S: Final = 5.0
_FULL_PERCENT: Final = 100.0
_MOST_MIB: Final = 2**40
_MAX_LABELS: Final = 64  # a controller refuses more
_READINGS: Final = {"used_mib": None, "utilization": None, "health": "ok", "health_reason": "", "details": None}
_MOST_FOREIGN: Final = 32
_DETAILS_EVERY: Final = 3  # reports
_BUILDS: Final = EngineBuilds()  # of this host; `up` runs many simulated hosts in one process
BUSY_PERCENT: Final = 5.0
_READ_EVERY_S: Final = 5.0

log = structlog.get_logger()


class IdleGpus:
    """For how long each GPU was observed to be idle. In a gap between samples it may have worked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._read_s: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def note(self, gpus: Iterable[ReportedGpu]) -> None:
        """Notes a reading. A gap between two readings counts as work."""
        now = self._clock()
        read_s: dict[str, float] = {}
        for gpu in gpus:
            if gpu.utilization is None:
                continue
            read_s[gpu.uuid] = now
            gap = now - self._read_s.get(gpu.uuid, now) > _READ_EVERY_S
            if gpu.utilization >= BUSY_PERCENT or gap or gpu.uuid not in self._read_s:
                self._since[gpu.uuid] = now
        self._read_s = read_s

    def seconds(self, uuid: str) -> float | None:
        """Seconds since the GPU's last work or its first reading; None if its present state is unknown."""
        now = self._clock()
        if now - self._read_s.get(uuid, -_READ_EVERY_S * 2) > _READ_EVERY_S:
            return None
        return now - self._since[uuid]


class InventoryWatch:
    """Reads the GPUs, and keeps their last known state."""

    def __init__(
        self,
        reader: GpuReader,
        host: ReportedHost,
        *,
        reserve_gpu_mib: int | None = None,
        runtimes: Callable[[], Awaitable[tuple[ReportedRuntime, ...]]] | None = None,
        engine_environment: tuple[str, ...] = (),
    ) -> None:
        """`reserve_gpu_mib` of each GPU is for other uses; None: as reported. `runtimes` None: as in `host`."""
        self._engine_environment = engine_environment
        self._runtimes = runtimes
        self._reader = reader
        self._host = host
        self._stated_engines = host.engines if host.simulated else None
        self._missing: set[str] = set()
        self._reserve_gpu_mib = reserve_gpu_mib
        self._devices: dict[str, ReportedGpu] = {}
        self._reported: Inventory | None = None
        self._foreign: dict[str, tuple[ForeignProcess, ...]] = {}
        self._listed: dict[str, frozenset[ProcessKey]] = {}
        self._idle = IdleGpus(boot_clock)
        self._impossible = 0
        self._reports = 0

    @property
    def devices(self) -> Mapping[str, ReportedGpu]:
        """By UUID, as last read; a failed reading does not remove them."""
        return MappingProxyType(self._devices)

    def index_of(self, uuid: str) -> int | None:
        """A GPU's index on this host as last read; None if unknown, or of a MIG slice."""
        device = self._devices.get(uuid)
        return None if device is None or device.parent is not None else device.index

    async def read_gpus(self) -> tuple[ReportedGpu, ...] | None:
        """None: the GPUs are unknown, since they could not be read."""
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                gpus = await self._reader.read()
        except OSError as error:  # TimeoutError is one
            log.warning("GPUs not read", error=repr(error))
            return None
        if gpus is None:
            return None
        gpus = tuple(map(self._without_impossible, gpus))
        if self._reserve_gpu_mib is not None:
            gpus = tuple(replace(gpu, reserved_mib=self._reserve_gpu_mib) for gpu in gpus)
        self._devices = {gpu.uuid: gpu for gpu in gpus}
        return gpus

    async def sample_gpus(self) -> GpuReading | None:
        """As `read_gpus`, with the GPUs' processes."""
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                reading = await self._reader.sample()
        except OSError as error:  # as above
            log.warning("GPUs not sampled", error=repr(error))
            return None
        if reading is None:
            return None
        gpus = tuple(map(self._without_impossible, reading.gpus))
        self._idle.note(gpus)
        return dataclasses.replace(reading, gpus=gpus)

    def idle_for(self, uuid: str) -> float | None:
        """Seconds of observed idleness; None if unknown."""
        return self._idle.seconds(uuid)

    def dismiss(self, dismissed: Mapping[str, int]) -> None:
        """`dismissed`: number of an operator's dismissals by UUID of a GPU."""
        self._reader.dismiss(dismissed)

    def note_processes(self, work: Mapping[str, GpuWork], owners: Mapping[int, ProcessKey | None]) -> None:
        """Notes the driver's processes on each GPU. If these or their owners are unknown, the last state stays."""
        if not owners and any(gpu.running for gpu in work.values()):
            return
        for uuid, gpu in work.items():
            self._listed[uuid] = frozenset(key for pid in gpu.running if (key := owners.get(pid)) is not None)
        self._foreign = {uuid: _foreign(gpu, owners) for uuid, gpu in work.items()}

    def listing(self, key: ProcessKey) -> tuple[str, ...]:
        """The GPUs on which the driver listed a process at the newest reading, running or not."""
        return tuple(sorted(uuid for uuid, keys in self._listed.items() if key in keys))

    def take_impossible(self) -> int:
        """The number of impossible readings since the last call, which count as unknown."""
        taken, self._impossible = self._impossible, 0
        return taken

    def _without_impossible(self, gpu: ReportedGpu) -> ReportedGpu:
        wrong: dict[str, None] = {}
        if gpu.utilization is not None and not 0 <= gpu.utilization <= _FULL_PERCENT:  # NaN is in no range
            wrong["utilization"] = None
        if gpu.used_mib is not None and not 0 <= gpu.used_mib <= _MOST_MIB:
            wrong["used_mib"] = None
        self._impossible += len(wrong)
        return replace(gpu, **wrong) if wrong else gpu

    async def read(self) -> Inventory:
        gpus = await self.read_gpus()
        if not self._host.simulated:
            driver = await self._reader.driver()
            self._host = replace(self._host, driver=driver or self._host.driver)
        self._host = replace(self._host, engines=await self._engines())
        if self._runtimes is not None:
            self._host = replace(self._host, runtimes=await self._runtimes())
        error = "" if gpus is not None else self._reader.error() or "nvml_hang: the GPUs were not read in time"
        return Inventory(host=self._labelled(gpus), gpus=self._thinned(gpus), gpus_error=error)

    def note_missing(self, program: str) -> None:
        """A start did not find this program: its engine is not reported until the program exists."""
        self._missing |= {name for name, known in PROGRAMS.items() if known == program}

    async def _engines(self) -> tuple[str, ...]:
        """Installed engines with marks of versions and builds; of a simulated host those that its file names."""
        self._missing = {name for name in self._missing if program_of(name, os.environ) is None}
        if self._stated_engines is not None:
            return tuple(name for name in self._stated_engines if name not in self._missing)
        env = passed_on(os.environ, self._engine_environment)
        engines = (*installed_engines(env), *await _BUILDS.marks(env))
        # A host with simulated GPUs can run a build that uses none.
        return tuple(mark for mark in engines if mark != LLAMA_CPP_ON_CPU) if self._host.simulated else engines

    def _thinned(self, gpus: tuple[ReportedGpu, ...] | None) -> tuple[ReportedGpu, ...] | None:
        """Details change slowly, so only each third report has them."""
        self._reports += 1
        if gpus is None:
            return None
        if self._reports % _DETAILS_EVERY == 1:
            return tuple(self._with_foreign(gpu) for gpu in gpus)
        return tuple(replace(gpu, details=None) for gpu in gpus)

    def _with_foreign(self, gpu: ReportedGpu) -> ReportedGpu:
        if gpu.details is None or gpu.uuid not in self._foreign:
            return gpu
        details = replace(gpu.details, foreign=self._foreign[gpu.uuid])
        return replace(gpu, details=details)

    def _labelled(self, gpus: tuple[ReportedGpu, ...] | None) -> ReportedHost:
        """The host with derived labels; without them if there are too many: the controller derives them too."""
        known = gpus if gpus is not None else tuple(self._devices.values()) or None
        labels = with_agent_labels(self._host, known)
        return replace(self._host, labels=labels) if len(labels) <= _MAX_LABELS else self._host

    def mark_reported(self, inventory: Inventory) -> bool:
        """Notes a report; True if it differs from the last in more than readings and health."""
        if inventory.gpus is None and self._reported is not None:
            return False
        changed = self._reported is None or _without_readings(inventory) != _without_readings(self._reported)
        self._reported = inventory
        return changed


def _foreign(work: GpuWork, owners: Mapping[int, ProcessKey | None]) -> tuple[ForeignProcess, ...]:
    pids = [pid for pid in work.running if pid in owners and owners[pid] is None]
    foreign = [ForeignProcess(pid=pid, name=process_name(pid), memory_mib=work.memory_mib.get(pid)) for pid in pids]
    return tuple(sorted(foreign, key=lambda process: (-(process.memory_mib or 0), process.pid))[:_MOST_FOREIGN])


def _without_readings(inventory: Inventory) -> Inventory:
    gpus = inventory.gpus
    kept = None if gpus is None else tuple(replace(gpu, **_READINGS) for gpu in gpus)
    return replace(inventory, gpus=kept, gpus_error="")
