"""The samples that policies look at, in memory: the database has them all, and from it they are read again when needed.

Only what some deployment with a policy claims is kept, and only for as long as that policy's window reaches back.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import groupby
from math import nan
from typing import Final, TypeAlias

from controller.decide.policies.actions import is_judged
from controller.domain.policies import GpuClaim, PolicyFacts, WatchedInstance
from controller.domain.series import Series
from controller.domain.utilization import GpuUse, InstanceUse, RequestsSeen
from controller.store.telemetry.sample_reads import ProcessReading, Sample

_MARGIN_S: Final = 300.0  # beyond the window: what the oldest sample in it speaks for, and how late a look may come

Hold: TypeAlias = tuple[str, int, str]  # instance, epoch, GPU
Watched: TypeAlias = tuple[str, str]  # deployment's uid, instance


class Telemetry:
    """Series of GPUs, of instances on shared GPUs, and the newest word of requests. For one loop, without a lock."""

    def __init__(self) -> None:
        self._gpus: dict[str, Series] = {}
        self._own: dict[Hold, Series] = {}
        self._requests: dict[tuple[str, int], dict[int, RequestsSeen]] = {}
        self._holds: dict[str, dict[Hold, float]] = {}  # by deployment; seconds that each must reach back
        self._watchers: defaultdict[str, dict[Hold, str]] = defaultdict(
            dict
        )  # by GPU: who holds it, of which deployment
        self._loaded: dict[Hold, float] = {}  # seconds back for which the past was read

    @property
    def samples(self) -> int:
        """How many are held."""
        return sum(len(s) for s in (*self._gpus.values(), *self._own.values()))

    def watch(self, facts: PolicyFacts) -> None:
        """From now on keeps what this deployment's policy needs. The past is `missing` until it is `put_past`."""
        keep_s = facts.policy.spec.time_window + _MARGIN_S if facts.policy is not None and not facts.deleted else None
        holds = {} if keep_s is None else {h: keep_s for i in facts.instances if is_judged(i) for h in _holds_of(i)}
        for hold in self._holds.get(facts.uid, {}).keys() - holds.keys():
            self._let_go(hold)
        self._holds[facts.uid] = holds
        for hold, seconds in holds.items():
            # No more than is kept from now on: a window that becomes shorter and longer again lacks what was trimmed.
            self._loaded[hold] = min(self._loaded.get(hold, 0.0), seconds)
            self._watchers[hold[2]][hold] = facts.uid
            self._gpus.setdefault(hold[2], Series())
            self._own.setdefault(hold, Series())
            self._requests.setdefault(hold[:2], {})
        if not holds:
            del self._holds[facts.uid]

    def forget(self, uid: str) -> None:
        """The deployment is gone."""
        for hold in self._holds.pop(uid, {}):
            self._let_go(hold)

    def _let_go(self, hold: Hold) -> None:
        instance, epoch, gpu = hold
        self._own.pop(hold, None)
        self._loaded.pop(hold, None)
        self._requests.pop((instance, epoch), None)
        self._watchers[gpu].pop(hold, None)
        if not self._watchers[gpu]:
            del self._watchers[gpu]
            del self._gpus[gpu]

    def missing(self, uid: str) -> dict[str, float]:
        """GPUs of which the past must be read, and how many seconds back."""
        holds = self._holds.get(uid, {})
        return {hold[2]: keep_s for hold, keep_s in holds.items() if self._loaded[hold] < keep_s}

    def put_past(self, gpus: Collection[str], reach_s: float, samples: Iterable[Sample]) -> None:
        """Takes in the past of these GPUs, by GPU and time, which was read for so many seconds back."""
        for gpu, found in groupby(samples, key=lambda s: s.device):
            rows = list(found)
            if gpu in self._gpus:
                self._gpus[gpu].extend((s.at, s.period_s, s.mean, s.max) for s in rows)
                for sample in rows:
                    self._put_processes(sample)
        for gpu in gpus:
            for hold, uid in self._watchers.get(gpu, {}).items():
                self._loaded[hold] = max(min(reach_s, self._holds[uid][hold]), self._loaded[hold])

    def put(self, samples: Iterable[Sample]) -> set[Watched]:
        """Takes in what has come; the instances that it concerns."""
        concerned: set[Watched] = set()
        for sample in samples:
            series = self._gpus.get(sample.device)
            if series is None:
                continue
            series.put(sample.at, sample.period_s, sample.mean, sample.max)
            self._put_processes(sample)
            watchers = self._watchers[sample.device]
            keep_s = max(self._holds[uid][hold] for hold, uid in watchers.items())
            series.trim(sample.at - keep_s)
            for hold, uid in watchers.items():
                self._own[hold].trim(sample.at - keep_s)
                concerned.add((uid, hold[0]))
        return concerned

    def _put_processes(self, sample: Sample) -> None:
        for process in sample.processes:
            own = self._own.get((process.instance, process.epoch, sample.device))
            if own is not None:
                mean = nan if process.mean is None else process.mean
                high = nan if process.max is None else process.max
                own.put(sample.at, sample.period_s, mean, high)
                self._put_requests(sample, process)

    def _put_requests(self, sample: Sample, process: ProcessReading) -> None:
        ranks = self._requests[process.instance, process.epoch]
        before = ranks.get(process.rank)
        if before is None or sample.at > before.at:
            ranks[process.rank] = RequestsSeen(sample.at, sample.period_s, process.requests)

    def use_of(self, instance: WatchedInstance) -> InstanceUse:
        """All that is known of how this epoch uses its GPUs."""
        gpus = tuple(self._gpu_use(instance, claim) for claim in instance.claims)
        ranks = self._requests.get((instance.id, instance.epoch), {})
        return InstanceUse(instance.phase, instance.running_since, gpus, tuple(ranks.values()))

    def _gpu_use(self, instance: WatchedInstance, claim: GpuClaim) -> GpuUse:
        """A whole GPU is judged by itself; a shared one, by the instance's own processes on it."""
        series = self._gpus[claim.device] if claim.exclusive else self._own[instance.id, instance.epoch, claim.device]
        return GpuUse(claim.device, claim.worker, series, own=not claim.exclusive)


def _holds_of(instance: WatchedInstance) -> Collection[Hold]:
    return [(instance.id, instance.epoch, c.device) for c in instance.claims]
