"""Accumulates readings into sampling periods, and cuts a period where reading stopped. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from agent.gpus.reader import GpuWork
from agent.state.process_records import ProcessKey
from schemas.wire import DeviceFacts, GpuSample, ProcessSample, Readings

CUT_S: Final = 2.0  # reading has stopped where no reading followed for longer
_FULL_PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True)
class Holder:
    """A process and the GPUs (by UUID) that it claims; the most requests at once, and their number; its pressure.

    None: unknown.
    """

    key: ProcessKey
    devices: tuple[str, ...]
    requests: int | None
    arrived: int | None = None
    queued: int | None = None
    kv_use: float | None = None


@dataclass(slots=True)
class _Piece:
    """One GPU's readings without a stop: a sampling period, or a part of it."""

    uuid: str  # the GPU
    begin_s: float  # where the time that the readings speak for begins
    end_s: float  # the last reading
    percents: list[float] = field(default_factory=list)  # the GPU's utilization
    used_mib: int | None = None  # memory in use at the last reading
    running: set[ProcessKey] = field(default_factory=set)  # this agent's processes that were seen on the GPU
    # utilization by process, of the readings in which the driver reported any process
    by_owner: list[Mapping[ProcessKey, float]] = field(default_factory=list)
    # whether the driver reported a working process whose owner is unknown, or an impossible figure
    unowned: bool = False


class ReadPeriod:
    """What was read of some GPUs from one time to another without a stop. Every GPU of it has a sample."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self._gpus = {piece.uuid: piece for piece in pieces}
        self.end_s = pieces[0].end_s
        self.read_s = max(pieces[0].end_s - pieces[0].begin_s, 0.0)

    def gpus(self) -> tuple[GpuSample, ...]:
        """The samples of the GPUs."""
        return tuple(
            GpuSample(uuid=uuid, mean=_mean(gpu.percents), max=max(gpu.percents), used_mib=gpu.used_mib)
            for uuid, gpu in self._gpus.items()
        )

    def process(self, holder: Holder) -> ProcessSample | None:
        """The sample of one process; None: it holds none of the GPUs."""
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
        """The process's own utilization of the GPU; None: unknown, which is not zero.

        On a GPU without load it is zero. Else the driver's figures count only if three conditions hold: it reported
        some process; it saw this process, which proves that its pids match this agent's; and every figure has an owner.
        """
        gpu = self._gpus[uuid]
        if max(gpu.percents) == 0:
            return Readings(mean=0.0, max=0.0)
        if key not in gpu.running or not gpu.by_owner or gpu.unowned:
            return None
        percents = [percent.get(key, 0.0) for percent in gpu.by_owner]
        return Readings(mean=_mean(percents), max=max(percents))


class PeriodAccumulator:
    """The readings of GPUs, cut into pieces where reading stopped. One `add` for each GPU and second.

    A reading speaks for the time since the one before if that is at most two seconds; otherwise it speaks for none. So
    periods follow one another without a gap while reading continues. A failed reading is not added.
    """

    def __init__(self) -> None:
        self._open: dict[str, _Piece] = {}
        self._ended: list[_Piece] = []
        self._last_s: dict[str, float] = {}  # by GPU, of its last reading

    def add(self, at_s: float, facts: DeviceFacts, work: GpuWork, owners: Mapping[int, ProcessKey | None]) -> None:
        """Adds one reading. `owners` maps pids to processes, None: not this agent's; a missing pid is unknown."""
        if facts.utilization is None:
            return
        gpu = self._piece(facts.uuid, at_s)
        gpu.percents.append(facts.utilization)
        gpu.used_mib = facts.used_mib
        gpu.running.update(key for pid in work.running if (key := owners.get(pid)) is not None)
        if work.percent:
            possible = all(0 <= value <= _FULL_PERCENT for value in work.percent.values())
            unowned = any(value > 0 for pid, value in work.percent.items() if pid not in owners)
            gpu.by_owner.append(_by_owner(work.percent, owners))
            gpu.unowned = gpu.unowned or unowned or not possible

    def close(self) -> list[ReadPeriod]:
        """Ends the sampling period; its pieces, oldest first. GPUs that were read at the same times share one."""
        pieces, self._open, self._ended = [*self._ended, *self._open.values()], {}, []
        together: defaultdict[tuple[float, float], list[_Piece]] = defaultdict(list)
        for piece in pieces:
            together[piece.end_s, piece.begin_s].append(piece)
        return [ReadPeriod(together[times]) for times in sorted(together)]

    def _piece(self, uuid: str, at_s: float) -> _Piece:
        last_s, self._last_s[uuid] = self._last_s.get(uuid), at_s
        goes_on = last_s is not None and at_s - last_s <= CUT_S
        gpu = self._open.get(uuid)
        if gpu is not None and not goes_on:
            self._ended.append(gpu)
        if gpu is None or not goes_on:
            begin_s = last_s if goes_on and last_s is not None else at_s
            gpu = self._open[uuid] = _Piece(uuid, begin_s, at_s)
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
