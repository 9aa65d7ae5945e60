"""Accumulates the readings of one sampling period. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.gpus.reader import GpuWork
from agent.process_records import ProcessKey
from schemas.wire import DeviceFacts, GpuSample, ProcessSample, Readings

_FULL_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and the GPUs (by UUID) that it claims. `requests` None: unknown."""

    key: ProcessKey
    devices: tuple[str, ...]
    requests: int | None


@dataclass(slots=True)
class _Gpu:
    """One GPU's readings.

    Attributes:
        percents: the GPU's utilization.
        used_mib: memory in use at the last reading.
        running: this agent's processes that were seen on the GPU.
        by_owner: utilization by process, of the readings in which the driver reported any process.
        unowned: whether the driver reported a working process whose owner is unknown.
    """

    percents: list[float] = field(default_factory=list)
    used_mib: int | None = None
    running: set[ProcessKey] = field(default_factory=set)
    by_owner: list[Mapping[ProcessKey, float]] = field(default_factory=list)
    unowned: bool = False


class PeriodAccumulator:
    """The readings of one period: one `add` for each GPU and second. A failed reading is not added."""

    def __init__(self) -> None:
        self._gpus: defaultdict[str, _Gpu] = defaultdict(_Gpu)

    def add(self, facts: DeviceFacts, work: GpuWork, owners: Mapping[int, ProcessKey | None]) -> None:
        """Adds one reading. `owners` maps pids to processes, None: not this agent's; a missing pid is unknown."""
        if facts.utilization is None:
            return
        gpu = self._gpus[facts.uuid]
        gpu.percents.append(facts.utilization)
        gpu.used_mib = facts.used_mib
        gpu.running.update(key for pid in work.running if (key := owners.get(pid)) is not None)
        if work.percent:
            gpu.by_owner.append(_by_owner(work.percent, owners))
            gpu.unowned = gpu.unowned or any(value > 0 for pid, value in work.percent.items() if pid not in owners)

    def gpus(self) -> tuple[GpuSample, ...]:
        """The period's samples; a GPU that was never read has none."""
        return tuple(
            GpuSample(uuid=uuid, mean=_mean(gpu.percents), max=max(gpu.percents), used_mib=gpu.used_mib)
            for uuid, gpu in self._gpus.items()
        )

    def process(self, holder: Holder) -> ProcessSample:
        """The sample of one process."""
        return ProcessSample(
            **holder.key._asdict(),
            utilization={uuid: self._own(holder.key, uuid) for uuid in holder.devices},
            requests=holder.requests,
        )

    def _own(self, key: ProcessKey, uuid: str) -> Readings | None:
        """The process's own utilization of the GPU; None: unknown, which is not zero.

        On a GPU without load it is zero. Else the driver's figures count only if three conditions hold: it reported
        some process; it saw this process, which proves that its pids match this agent's; and every figure has an owner.
        """
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return None
        if max(gpu.percents) == 0:
            return Readings(mean=0.0, max=0.0)
        if key not in gpu.running or not gpu.by_owner or gpu.unowned:
            return None
        percents = [percent.get(key, 0.0) for percent in gpu.by_owner]
        return Readings(mean=_mean(percents), max=max(percents))


def _by_owner(percent: Mapping[int, float], owners: Mapping[int, ProcessKey | None]) -> Mapping[ProcessKey, float]:
    """The sum over each process's tree, at most 100."""
    sums: defaultdict[ProcessKey, float] = defaultdict(float)
    for pid, value in percent.items():
        if (key := owners.get(pid)) is not None:
            sums[key] += value
    return {key: min(value, _FULL_PERCENT) for key, value in sums.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
