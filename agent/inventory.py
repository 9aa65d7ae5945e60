"""What this host has: its facts, and its GPUs as last read."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

import structlog

from agent.gpus.reader import GpuReader, GpuReading
from agent.installed_engines import installed_engines
from schemas.wire import DeviceFacts, HostFacts, Inventory
from schemas.worker_labels import with_agent_labels

_READ_LIMIT_S: Final = 5.0
_FULL_PERCENT: Final = 100.0
_MOST_MIB: Final = 2**40
_MAX_LABELS: Final = 64  # a controller refuses more
log = structlog.get_logger()
_READINGS: Final = {"used_mib": None, "utilization": None, "health": "ok", "health_reason": ""}


class InventoryWatch:
    """Reads the GPUs, and remembers the last that was known of them."""

    def __init__(self, reader: GpuReader, host: HostFacts, *, reserve_gpu_mib: int | None = None) -> None:
        """`reserve_gpu_mib` of each GPU is reserved for other uses; None: as the reader reports."""
        self._reader = reader
        self._host = host
        self._reserve_gpu_mib = reserve_gpu_mib
        self._devices: dict[str, DeviceFacts] = {}
        self._reported: Inventory | None = None
        self._impossible = 0

    @property
    def devices(self) -> Mapping[str, DeviceFacts]:
        """The GPUs by UUID as last read; a failed reading does not remove them."""
        return MappingProxyType(self._devices)

    def index_of(self, uuid: str) -> int | None:
        """A GPU's index on this host as last read; None if it is unknown."""
        device = self._devices.get(uuid)
        return None if device is None else device.index

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
            gpus = tuple(gpu.model_copy(update={"reserved_mib": self._reserve_gpu_mib}) for gpu in gpus)
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
        return None if reading is None else replace(reading, gpus=self._possible(reading.gpus))

    def take_impossible(self) -> int:
        """The number of readings since the last call that no GPU can have. They are unknown."""
        taken, self._impossible = self._impossible, 0
        return taken

    def _possible(self, gpus: tuple[DeviceFacts, ...]) -> tuple[DeviceFacts, ...]:
        """The GPUs without impossible readings."""
        return tuple(self._without_impossible(gpu) for gpu in gpus)

    def _without_impossible(self, gpu: DeviceFacts) -> DeviceFacts:
        wrong: dict[str, None] = {}
        if gpu.utilization is not None and not 0 <= gpu.utilization <= _FULL_PERCENT:  # NaN is in no range
            wrong["utilization"] = None
        if gpu.used_mib is not None and not 0 <= gpu.used_mib <= _MOST_MIB:
            wrong["used_mib"] = None
        self._impossible += len(wrong)
        return gpu.model_copy(update=wrong) if wrong else gpu

    async def read(self) -> Inventory:
        """Host and GPUs, read now."""
        gpus = await self.read_gpus()
        if not self._host.simulated:
            driver = await self._reader.driver()
            engines = installed_engines(os.environ)
            self._host = self._host.model_copy(update={"driver": driver or self._host.driver, "engines": engines})
        return Inventory(host=self._labelled(gpus), gpus=gpus)

    def _labelled(self, gpus: tuple[DeviceFacts, ...] | None) -> HostFacts:
        """The host with the agent's own labels; GPUs that cannot be read now count as last read.

        They are left out where there would be too many labels: the controller derives them too.
        """
        known = gpus if gpus is not None else tuple(self._devices.values()) or None
        labels = with_agent_labels(self._host, known)
        return self._host.model_copy(update={"labels": labels}) if len(labels) <= _MAX_LABELS else self._host

    def mark_reported(self, inventory: Inventory) -> bool:
        """Notes what is reported; True if it differs from the last report in more than readings and health."""
        if inventory.gpus is None and self._reported is not None:
            return False
        changed = self._reported is None or _without_readings(inventory) != _without_readings(self._reported)
        self._reported = inventory
        return changed


def _without_readings(inventory: Inventory) -> Inventory:
    gpus = inventory.gpus
    return inventory.model_copy(
        update={"gpus": None if gpus is None else tuple(gpu.model_copy(update=_READINGS) for gpu in gpus)}
    )
