"""Adds the readings of one sampling period up. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agent.gpus.reader import GpuWork
from agent.records import Key
from schemas.wire import DeviceFacts, GpuSample, ProcessSample, Readings

_FULL_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and the GPUs (by UUID) that it claims; `requests` None is unknown."""

    key: Key
    devices: tuple[str, ...]
    requests: int | None


@dataclass(slots=True)
class _Gpu:
    """One GPU's readings, in percent."""

    percents: list[float] = field(default_factory=list)
    used_mib: int | None = None
    running: set[Key] = field(default_factory=set)  # of ours, seen among the GPU's processes
    told: list[Mapping[Key, float]] = field(default_factory=list)  # readings in which the driver told of some process
    unowned: bool = False  # it told of some, and whose they are could not be found out


class Accumulation:
    """The readings of one period, one `add` for each GPU and second. What could not be read is not added."""

    def __init__(self) -> None:
        self._gpus: defaultdict[str, _Gpu] = defaultdict(_Gpu)

    def add(self, facts: DeviceFacts, work: GpuWork, owners: Mapping[int, Key | None]) -> None:
        """One reading. `owners` says whose each pid is, None if not ours; a pid that is missing may be anybody's."""
        if facts.utilization is None:
            return
        gpu = self._gpus[facts.uuid]
        gpu.percents.append(facts.utilization)
        gpu.used_mib = facts.used_mib
        gpu.running.update(key for pid in work.running if (key := owners.get(pid)) is not None)
        if work.percent:
            gpu.told.append(_by_owner(work.percent, owners))
            gpu.unowned = gpu.unowned or any(value > 0 for pid, value in work.percent.items() if pid not in owners)

    def gpus(self) -> tuple[GpuSample, ...]:
        """The period's samples: none of a GPU that was never read."""
        return tuple(
            GpuSample(uuid=uuid, mean=_mean(gpu.percents), max=max(gpu.percents), used_mib=gpu.used_mib)
            for uuid, gpu in self._gpus.items()
        )

    def process(self, holder: Holder) -> ProcessSample:
        """The period of one process."""
        return ProcessSample(
            instance=holder.key.instance,
            epoch=holder.key.epoch,
            rank=holder.key.rank,
            utilization={uuid: self._own(holder.key, uuid) for uuid in holder.devices},
            requests=holder.requests,
        )

    def _own(self, key: Key, uuid: str) -> Readings | None:
        """What the process itself did on the GPU; None where that cannot be known, which is not zero.

        On a GPU that did nothing it did nothing. Else the driver's word counts only if it told of some process, and if
        ours was among those that it saw: that is the proof that its pids are those that we know. And only if we know of
        each reading whose it was.
        """
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return None
        if max(gpu.percents) == 0:
            return Readings(mean=0.0, max=0.0)
        if key not in gpu.running or not gpu.told or gpu.unowned:
            return None
        percents = [told.get(key, 0.0) for told in gpu.told]
        return Readings(mean=_mean(percents), max=max(percents))


def _by_owner(percent: Mapping[int, float], owners: Mapping[int, Key | None]) -> Mapping[Key, float]:
    """The sums over each process's tree."""
    sums: defaultdict[Key, float] = defaultdict(float)
    for pid, value in percent.items():
        if (key := owners.get(pid)) is not None:
            sums[key] += value
    return {key: min(value, _FULL_PERCENT) for key, value in sums.items()}


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
