"""Accumulates readings into sampling periods, and cuts a period where readings stopped. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agent.gpus.reader import GpuWork
from agent.state.process_records import ProcessKey
from schemas.wire import GpuSample, ProcessSample, Readings, ReportedGpu

CUT_S: Final = 2.0  # a longer gap between two readings cuts a period
_FULL_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and its claimed GPUs (by UUID), with its requests and pressure. None: unknown."""

    key: ProcessKey
    devices: tuple[str, ...]
    requests: int | None  # most at once
    arrived: int | None = None
    queued: int | None = None
    kv_use: float | None = None


@dataclass(slots=True)
class _Segment:
    """One GPU's readings without a gap: a sampling period, or a part of it."""

    uuid: str
    begin_s: float  # start of the covered time
    end_s: float  # the last reading
    percents: list[float] = field(default_factory=list)  # the GPU's utilization
    used_mib: int | None = None  # memory in use at the last reading
    running: set[ProcessKey] = field(default_factory=set)  # this agent's processes on the GPU
    # utilization by process, of readings in which the driver reported any process
    by_owner: list[Mapping[ProcessKey, float]] = field(default_factory=list)
    unowned: bool = False  # the driver reported an active process with an unknown owner, or an impossible figure


class ReadPeriod:
    """Readings of some GPUs over the same time without a gap. Each GPU has a sample."""

    def __init__(self, segments: Sequence[_Segment]) -> None:
        self._gpus = {segment.uuid: segment for segment in segments}
        self.end_s = segments[0].end_s
        self.read_s = max(segments[0].end_s - segments[0].begin_s, 0.0)

    def gpus(self) -> tuple[GpuSample, ...]:
        return tuple(
            GpuSample(uuid=uuid, mean=_mean(gpu.percents), max=max(gpu.percents), used_mib=gpu.used_mib)
            for uuid, gpu in self._gpus.items()
        )

    def process(self, holder: Holder) -> ProcessSample | None:
        """None if the process holds none of the GPUs."""
        held = [uuid for uuid in holder.devices if uuid in self._gpus]
        if not held:
            return None
        return ProcessSample(
            **holder.key._asdict(),
            utilization={uuid: self._own(holder.key, uuid) for uuid in held},
            requests=holder.requests,
            arrived=holder.arrived,
            queued=holder.queued,
            kv_use=holder.kv_use,
        )

    def _own(self, key: ProcessKey, uuid: str) -> Readings | None:
        """The process's own utilization of the GPU; None if unknown, which is not zero.

        It is zero on an idle GPU. Else the driver's figures count only if it reported any process; if it reported this
        process, which proves that its pids match this agent's; and if every figure has an owner.
        """
        gpu = self._gpus[uuid]
        if max(gpu.percents) == 0:
            return Readings(mean=0.0, max=0.0)
        if key not in gpu.running or not gpu.by_owner or gpu.unowned:
            return None
        percents = [percent.get(key, 0.0) for percent in gpu.by_owner]
        return Readings(mean=_mean(percents), max=max(percents))


class PeriodAccumulator:
    """The readings of GPUs, cut into segments at gaps. One `add` for each GPU and second.

    A reading covers the time since the previous one if that is at most two seconds, else no time. So periods follow one
    another without a gap while readings continue. A failed reading is not added.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Segment] = {}
        self._ended: list[_Segment] = []
        self._last_s: dict[str, float] = {}  # by GPU, of its last reading

    def add(self, at_s: float, device: ReportedGpu, work: GpuWork, owners: Mapping[int, ProcessKey | None]) -> None:
        """`owners` maps pids to processes (None: not this agent's); a missing pid is unknown."""
        if device.utilization is None:
            return
        gpu = self._segment(device.uuid, at_s)
        gpu.percents.append(device.utilization)
        gpu.used_mib = device.used_mib
        gpu.running.update(key for pid in work.running if (key := owners.get(pid)) is not None)
        if work.percent:
            possible = all(0 <= value <= _FULL_PERCENT for value in work.percent.values())
            unowned = any(value > 0 for pid, value in work.percent.items() if pid not in owners)
            gpu.by_owner.append(_by_owner(work.percent, owners))
            gpu.unowned = gpu.unowned or unowned or not possible

    def close(self) -> list[ReadPeriod]:
        """Ends the sampling period; returns its parts, oldest first. GPUs that were read together share one."""
        segments, self._open, self._ended = [*self._ended, *self._open.values()], {}, []
        by_times: defaultdict[tuple[float, float], list[_Segment]] = defaultdict(list)
        for segment in segments:
            by_times[segment.end_s, segment.begin_s].append(segment)
        return [ReadPeriod(by_times[times]) for times in sorted(by_times)]

    def _segment(self, uuid: str, at_s: float) -> _Segment:
        last_s, self._last_s[uuid] = self._last_s.get(uuid), at_s
        continues = last_s is not None and at_s - last_s <= CUT_S
        gpu = self._open.get(uuid)
        if gpu is not None and not continues:
            self._ended.append(gpu)
        if gpu is None or not continues:
            begin_s = last_s if continues and last_s is not None else at_s
            gpu = self._open[uuid] = _Segment(uuid, begin_s, at_s)
        gpu.end_s = at_s
        return gpu


def _by_owner(percent: Mapping[int, float], owners: Mapping[int, ProcessKey | None]) -> Mapping[ProcessKey, float]:
    """The sum over each process's tree, at most 100."""
    sums: defaultdict[ProcessKey, float] = defaultdict(float)
    for pid, value in percent.items():
        if (key := owners.get(pid)) is not None:
            sums[key] += value
    return {key: min(value, _FULL_PERCENT) for key, value in sums.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
