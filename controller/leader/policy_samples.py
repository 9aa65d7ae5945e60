"""The samples that policies judge, in memory. The database holds all samples, and missing ones are read from it.

Samples are kept only for GPUs that a deployment with a policy claims, and only as far back as that policy's window.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf, nan
from typing import Final, NamedTuple, TypeAlias

from controller.decide.policies.actions import is_judged, known_low_since
from controller.decide.policies.windows import low_after
from controller.domain.policies import GpuClaim, PolicySnapshot, WatchedInstance
from controller.domain.telemetry.series import MeanSeries, Series
from controller.domain.telemetry.utilization import NO_LEAPS, GpuUse, InstanceUse
from controller.store.telemetry.minutes import Stretch
from controller.store.telemetry.samples import Sample
from schemas.manifest.policy import UtilizationPolicy

_MOST_RANKS: Final = 1024  # as many workers as an instance can have; an agent may name any
_MARGIN_S: Final = 300.0  # beyond the window: the time covered by its oldest sample, and the delay of a poll
Hold: TypeAlias = tuple[str, int, str]  # instance, epoch, GPU
Watched: TypeAlias = tuple[str, str]  # deployment's uid, instance
_MINUTE_S: Final = 60.0


class _Need(NamedTuple):
    """The reason why samples of a GPU are kept."""

    seconds: float  # of history
    rule: UtilizationPolicy
    exclusive: bool  # the policy judges the GPU's own samples


class Telemetry:
    """Series of GPUs, of instances on shared GPUs, and of requests. Not thread-safe.

    Attributes:
        leaps: of the database's clock.
    """

    def __init__(self) -> None:
        self._gpus: dict[str, Series] = {}
        self._own: dict[Hold, Series] = {}
        self.leaps = NO_LEAPS
        self._requests: dict[tuple[str, int], dict[int, Series]] = {}  # by instance and epoch, by rank
        self._means: dict[tuple[str, int], MeanSeries] = {}
        self._holds: dict[str, dict[Hold, _Need]] = {}  # by deployment
        # By GPU: its holds with their deployments.
        self._watchers: defaultdict[str, dict[Hold, str]] = defaultdict(dict)
        self._loaded: dict[Hold, float] = {}  # seconds of history that were read
        self._low_after: dict[Hold, float] = {}  # by samples that are no longer in memory
        self._newest: dict[str, float] = {}  # by GPU: its newest sample at the last `trim`

    @property
    def samples(self) -> int:
        """The number of samples in memory."""
        return sum(len(s) for s in (*self._gpus.values(), *self._own.values()))

    def watch(self, snapshot: PolicySnapshot) -> None:
        """Keeps the samples that this deployment's policy needs. The past is `missing` until `put_past`."""
        holds = _needs(snapshot)
        for hold in self._holds.get(snapshot.uid, {}).keys() - holds.keys():
            self._drop(hold)
        self._holds[snapshot.uid] = holds
        for hold, need in holds.items():
            # No more than is kept: a window that shrinks and grows again lacks the trimmed samples.
            self._loaded[hold] = min(self._loaded.get(hold, 0.0), need.seconds)
            self._watchers[hold[2]][hold] = snapshot.uid
            self._gpus.setdefault(hold[2], Series())
            self._own.setdefault(hold, Series())
            self._requests.setdefault(hold[:2], {})
        if not holds:
            del self._holds[snapshot.uid]

    def forget(self, uid: str) -> None:
        for hold in self._holds.pop(uid, {}):
            self._drop(hold)

    def _drop(self, hold: Hold) -> None:
        instance, epoch, gpu = hold
        self._own.pop(hold, None)
        self._loaded.pop(hold, None)
        self._low_after.pop(hold, None)
        self._requests.pop((instance, epoch), None)
        self._means.pop((instance, epoch), None)
        self._watchers[gpu].pop(hold, None)
        if not self._watchers[gpu]:
            del self._watchers[gpu]
            del self._gpus[gpu]

    def missing(self, uid: str) -> dict[str, float]:
        """GPUs whose past must be read, with the seconds of history that they need."""
        holds = self._holds.get(uid, {})
        return {hold[2]: need.seconds for hold, need in holds.items() if self._loaded[hold] < need.seconds}

    def put_past(self, uids: Collection[str], gpus: Collection[str], reach_s: float, samples: Iterable[Sample]) -> None:
        """Adds past samples, in any order, of these GPUs of these deployments, which reach back `reach_s` seconds."""
        past: defaultdict[Series, list[tuple[float, float, float, float, float | None]]] = defaultdict(list)
        for sample in samples:
            for series, mean, high in self._readings(sample):
                past[series].append((sample.at, sample.period_s, mean, high, sample.read_s))
        for series, rows in past.items():
            series.extend(rows)
        for gpu in gpus:
            for hold, uid in self._watchers.get(gpu, {}).items():
                if uid not in uids:
                    continue  # its verdicts were not compared with this past
                self._loaded[hold] = max(min(reach_s, self._holds[uid][hold].seconds), self._loaded[hold])

    def put_low_after(self, instance: WatchedInstance, devices: Iterable[str], at: float) -> None:
        """Records that these GPUs of the instance were not continuously low before."""
        for device in devices:
            hold = instance.id, instance.epoch, device
            self._low_after[hold] = max(at, self._low_after.get(hold, at))

    def put(self, samples: Iterable[Sample]) -> set[Watched]:
        """Adds new samples; returns the instances that they concern."""
        concerned: set[Watched] = set()
        for sample in samples:
            if sample.device not in self._gpus:
                continue
            for series, mean, high in self._readings(sample):
                series.put(sample.at, sample.period_s, mean, high, sample.read_s)
            concerned |= {(uid, hold[0]) for hold, uid in self._watchers[sample.device].items()}
        return concerned

    def trim(self) -> None:
        """Drops samples that no window needs, except those since the last call, which may not be judged yet.

        A backlog may be far longer than a window, and use in it ends "below since".
        """
        newest, self._newest = self._newest, {g: float(s.at[-1]) for g, s in self._gpus.items() if len(s)}
        for gpu, at in newest.items():
            needs = {hold: self._holds[uid][hold] for hold, uid in self._watchers.get(gpu, {}).items()}
            if not needs:
                continue
            before = self.leaps.lived_since(at, max(need.seconds for need in needs.values()))
            for hold, need in needs.items():
                self._remember(hold, need, before)
            self._gpus[gpu].trim(before)
            for hold in needs:
                self._own[hold].trim(before)
                for ranks in self._requests[hold[:2]].values():
                    ranks.trim(before)

    def _remember(self, hold: Hold, need: _Need, before: float) -> None:
        """Remembers use in samples that are about to be dropped. Stored verdicts know it only where all GPUs count."""
        if need.rule.gpus == "any":
            series = self._gpus[hold[2]] if need.exclusive else self._own[hold]
            at = low_after(series, need.rule.min_gpu_utilization, before)
            self._low_after[hold] = max(at, self._low_after.get(hold, at))

    def _readings(self, sample: Sample) -> Iterator[tuple[Series, float, float]]:
        """The series that a sample belongs to, with its mean and its highest value there."""
        gpu = self._gpus.get(sample.device)
        if gpu is None:
            return
        yield gpu, sample.mean, sample.max
        for process in sample.processes:
            own = self._own.get((process.instance, process.epoch, sample.device))
            if own is not None:
                yield own, _known(process.mean), _known(process.max)
                ranks = self._requests[process.instance, process.epoch]
                if process.rank not in ranks and len(ranks) < _MOST_RANKS:
                    ranks[process.rank] = Series()
                if process.rank in ranks:
                    yield ranks[process.rank], _known(process.arrived), _known(process.requests)

    def use_of(self, instance: WatchedInstance) -> InstanceUse:
        """How this epoch uses its GPUs, by all samples in memory."""
        gpus = tuple(self._gpu_use(instance, claim) for claim in instance.claims)
        key = (instance.id, instance.epoch)
        sources = tuple(gpu.series for gpu in gpus)
        mean = self._means.get(key)
        if mean is None or mean.sources != sources:
            mean = self._means[key] = MeanSeries(sources)
        ranks = tuple(self._requests.get(key, {}).values())
        return InstanceUse(instance.phase, instance.running_since, gpus, ranks, mean, self.leaps)

    def _gpu_use(self, instance: WatchedInstance, claim: GpuClaim) -> GpuUse:
        """An exclusive GPU is judged by its own samples; a shared GPU by the instance's processes on it."""
        series = self._gpus[claim.device] if claim.exclusive else self._own[instance.id, instance.epoch, claim.device]
        low = self._low_after.get((instance.id, instance.epoch, claim.device), -inf)
        return GpuUse(claim.device, claim.worker, series, not claim.exclusive, low)


def _known(value: float | None) -> float:
    return nan if value is None else value


def _needs(snapshot: PolicySnapshot) -> dict[Hold, _Need]:
    if snapshot.policy is None or snapshot.deleted:
        return {}
    rule = snapshot.policy.spec
    seconds = rule.time_window + _MARGIN_S
    return {
        (i.id, i.epoch, c.device): _Need(seconds, rule, c.exclusive)
        for i in snapshot.instances if is_judged(i) for c in i.claims
    }  # fmt: skip


class HistoryGap(NamedTuple):
    """A stretch of time that this leader has not read, and the devices for which its minutes count.

    Earlier leaders stored since when an instance is low, and samples reach less far. A backlog with use, or a gap, may
    have arrived while no leader judged.
    """

    instance: WatchedInstance
    devices: Collection[str]
    stretch: Stretch


def oldest_known(snapshot: PolicySnapshot) -> dict[str, float]:
    """Since when GPUs are low by stored verdicts; GPUs without such a verdict are missing."""
    since: dict[str, float] = {}
    for instance in snapshot.instances:
        low_since = _low_since(snapshot, instance)
        if low_since is not None:
            since |= {c.device: min(low_since, since.get(c.device, low_since)) for c in instance.claims}
    return since


def history_gaps(snapshot: PolicySnapshot, read: Mapping[str, float]) -> list[HistoryGap]:
    """The time that verdicts cover and samples do not. `read`: by GPU, the time since which its samples were read."""
    gaps: list[HistoryGap] = []
    for instance in snapshot.instances:
        low_since = _low_since(snapshot, instance)
        claims = [c for c in instance.claims if c.device in read]
        if low_since is None or snapshot.policy is None or not claims:
            continue
        rule = snapshot.policy.spec
        for together in [instance.claims] if rule.gpus == "mean" else [[c] for c in claims]:
            until = min(read[c.device] for c in together if c.device in read)
            parts = [_part(instance, c) for c in together]
            stretch = Stretch(parts, low_since, until, rule.min_gpu_utilization)
            if low_since < until:
                gaps.append(HistoryGap(instance, [c.device for c in together], stretch))
    return gaps


def start_of_minute(at: float) -> float:
    return at // _MINUTE_S * _MINUTE_S


def minutes_of(seconds: float) -> float:
    """Seconds as minutes; 0 if negative."""
    return max(seconds, 0.0) / _MINUTE_S


def _low_since(snapshot: PolicySnapshot, instance: WatchedInstance) -> float | None:
    if snapshot.policy is None or snapshot.deleted or not is_judged(instance):
        return None
    return known_low_since(snapshot.policy, instance)


def _part(instance: WatchedInstance, claim: GpuClaim) -> tuple[str, str]:
    return claim.device, "" if claim.exclusive else instance.id
