"""What this host has: its facts, and its GPUs as last read."""

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
from schemas.wire import DeviceFacts, ForeignProcess, HostFacts, Inventory, RuntimeFacts
from schemas.worker_labels import with_agent_labels

_READ_LIMIT_S: Final = 5.0
_FULL_PERCENT: Final = 100.0
_MOST_MIB: Final = 2**40
_MAX_LABELS: Final = 64  # a controller refuses more
log = structlog.get_logger()
_READINGS: Final = {"used_mib": None, "utilization": None, "health": "ok", "health_reason": "", "details": None}
_MOST_FOREIGN: Final = 32
_DETAILS_EACH: Final = 3  # of so many reports one has details
_BUILDS: Final = EngineBuilds()  # of this host; `up` runs many simulated hosts in one process
BUSY_PERCENT: Final = 5.0
_SEEN_EVERY_S: Final = 5.0


class IdleGpus:
    """For how long each GPU was observed to do nothing. In a gap between samples it may have worked."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}
        self._since: dict[str, float] = {}

    def note(self, gpus: Iterable[DeviceFacts]) -> None:
        """Notes a reading. A gap between two readings counts as work."""
        now = self._clock()
        seen: dict[str, float] = {}
        for gpu in gpus:
            if gpu.utilization is None:
                continue
            seen[gpu.uuid] = now
            gap = now - self._seen.get(gpu.uuid, now) > _SEEN_EVERY_S
            if gpu.utilization >= BUSY_PERCENT or gap or gpu.uuid not in self._seen:
                self._since[gpu.uuid] = now
        self._seen = seen

    def seconds(self, uuid: str) -> float | None:
        """Since it last did something, or was first seen; None: its present state is unknown."""
        now = self._clock()
        if now - self._seen.get(uuid, -_SEEN_EVERY_S * 2) > _SEEN_EVERY_S:
            return None
        return now - self._since[uuid]


class InventoryWatch:
    """Reads the GPUs, and remembers the last that was known of them."""

    def __init__(
        self,
        reader: GpuReader,
        host: HostFacts,
        *,
        reserve_gpu_mib: int | None = None,
        runtimes: Callable[[], Awaitable[tuple[RuntimeFacts, ...]]] | None = None,
        engine_environment: tuple[str, ...] = (),
    ) -> None:
        """`reserve_gpu_mib` of each GPU is reserved for other uses; None: as the reader reports.

        `runtimes` tells what runs containers here; None: as `host` says.
        `engine_environment` is the agent's setting, as engines are asked with what they will run with.
        """
        self._engine_environment = engine_environment
        self._runtimes = runtimes
        self._reader = reader
        self._host = host
        self._stated_engines = host.engines if host.simulated else None
        self._missing: set[str] = set()
        self._reserve_gpu_mib = reserve_gpu_mib
        self._devices: dict[str, DeviceFacts] = {}
        self._reported: Inventory | None = None
        self._foreign: dict[str, tuple[ForeignProcess, ...]] = {}
        self._listed: dict[str, frozenset[ProcessKey]] = {}
        self._idle = IdleGpus(boot_clock)
        self._impossible = 0
        self._reports = 0

    @property
    def devices(self) -> Mapping[str, DeviceFacts]:
        """The GPUs by UUID as last read; a failed reading does not remove them."""
        return MappingProxyType(self._devices)

    def index_of(self, uuid: str) -> int | None:
        """A GPU's index on this host as last read; None if it is unknown, or a MIG slice, which has none."""
        device = self._devices.get(uuid)
        return None if device is None or device.parent is not None else device.index

    async def read_gpus(self) -> tuple[DeviceFacts, ...] | None:
        """The GPUs, read now; None: they could not be read, so they are unknown."""
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                gpus = await self._reader.read()
        except OSError as error:  # TimeoutError is one
            log.warning("GPUs not read", error=repr(error))
            return None
        gpus = None if gpus is None else self._possible(gpus)
        if gpus is not None and self._reserve_gpu_mib is not None:
            gpus = tuple(replace(gpu, reserved_mib=self._reserve_gpu_mib) for gpu in gpus)
        if gpus is not None:
            self._devices = {gpu.uuid: gpu for gpu in gpus}
        return gpus

    async def sample_gpus(self) -> GpuReading | None:
        """The GPUs and what runs on them, read now; None: they could not be read."""
        try:
            async with asyncio.timeout(_READ_LIMIT_S):
                reading = await self._reader.sample()
        except OSError as error:  # as above
            log.warning("GPUs not sampled", error=repr(error))
            return None
        if reading is None:
            return None
        gpus = self._possible(reading.gpus)
        self._idle.note(gpus)
        return dataclasses.replace(reading, gpus=gpus)

    def idle_for(self, uuid: str) -> float | None:
        """For how many seconds a GPU was seen to do nothing; None: unknown."""
        return self._idle.seconds(uuid)

    def dismiss(self, dismissed: Mapping[str, int]) -> None:
        """Passes on how often an operator has dismissed what the driver reported of a GPU, by UUID."""
        self._reader.dismiss(dismissed)

    def note_processes(self, work: Mapping[str, GpuWork], owners: Mapping[int, ProcessKey | None]) -> None:
        """Notes what the driver lists on each GPU. Where that or the owners are unknown, the last word stands."""
        if not owners and any(one.running for one in work.values()):
            return
        for uuid, one in work.items():
            self._listed[uuid] = frozenset(key for pid in one.running if (key := owners.get(pid)) is not None)
        self._foreign = {uuid: _foreign(one, owners) for uuid, one in work.items()}

    def listing(self, key: ProcessKey) -> tuple[str, ...]:
        """The GPUs on which the driver listed a process at the newest reading, whether it still runs or not."""
        return tuple(sorted(uuid for uuid, keys in self._listed.items() if key in keys))

    def take_impossible(self) -> int:
        """The number of readings since the last call that no GPU can have. They are unknown."""
        taken, self._impossible = self._impossible, 0
        return taken

    def _possible(self, gpus: tuple[DeviceFacts, ...]) -> tuple[DeviceFacts, ...]:
        return tuple(self._without_impossible(gpu) for gpu in gpus)

    def _without_impossible(self, gpu: DeviceFacts) -> DeviceFacts:
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
        """Notes that a start did not find this program: its engine is not reported until it is found."""
        self._missing |= {name for name, known in PROGRAMS.items() if known == program}

    async def _engines(self) -> tuple[str, ...]:
        """What is installed, with marks of versions and builds; of a simulated host what its file names, if it does."""
        self._missing = {name for name in self._missing if program_of(name, os.environ) is None}
        if self._stated_engines is not None:
            return tuple(name for name in self._stated_engines if name not in self._missing)
        env = passed_on(os.environ, self._engine_environment)
        engines = (*installed_engines(env), *await _BUILDS.marks(env))
        # Where the GPUs are made up, a build that uses none is the one that can run.
        return tuple(one for one in engines if one != LLAMA_CPP_ON_CPU) if self._host.simulated else engines

    def _thinned(self, gpus: tuple[DeviceFacts, ...] | None) -> tuple[DeviceFacts, ...] | None:
        """The GPUs without details, which change slowly, but for one report of a few."""
        self._reports += 1
        if gpus is None:
            return None
        if self._reports % _DETAILS_EACH == 1:
            return tuple(self._with_foreign(gpu) for gpu in gpus)
        return tuple(replace(gpu, details=None) for gpu in gpus)

    def _with_foreign(self, gpu: DeviceFacts) -> DeviceFacts:
        if gpu.details is None or gpu.uuid not in self._foreign:
            return gpu
        details = replace(gpu.details, foreign=self._foreign[gpu.uuid])
        return replace(gpu, details=details)

    def _labelled(self, gpus: tuple[DeviceFacts, ...] | None) -> HostFacts:
        """The host with the agent's own labels; GPUs that cannot be read now count as last read.

        They are left out where there would be too many labels: the controller derives them too.
        """
        known = gpus if gpus is not None else tuple(self._devices.values()) or None
        labels = with_agent_labels(self._host, known)
        return replace(self._host, labels=labels) if len(labels) <= _MAX_LABELS else self._host

    def mark_reported(self, inventory: Inventory) -> bool:
        """Notes what is reported; True if it differs from the last report in more than readings and health."""
        if inventory.gpus is None and self._reported is not None:
            return False
        changed = self._reported is None or _without_readings(inventory) != _without_readings(self._reported)
        self._reported = inventory
        return changed


def _foreign(work: GpuWork, owners: Mapping[int, ProcessKey | None]) -> tuple[ForeignProcess, ...]:
    pids = [pid for pid in work.running if pid in owners and owners[pid] is None]
    found = [ForeignProcess(pid=pid, name=process_name(pid), memory_mib=work.memory_mib.get(pid)) for pid in pids]
    return tuple(sorted(found, key=lambda one: (-(one.memory_mib or 0), one.pid))[:_MOST_FOREIGN])


def _without_readings(inventory: Inventory) -> Inventory:
    gpus = inventory.gpus
    kept = None if gpus is None else tuple(replace(gpu, **_READINGS) for gpu in gpus)
    return replace(inventory, gpus=kept, gpus_error="")
