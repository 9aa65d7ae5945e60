"""Where instances run, which `spread` uses, and the demand observed so far: what instances take of one worker."""

import copy
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Self

from controller.domain.holdings import Demand, InstanceLoad

_NONE: Final[Mapping[str, int]] = MappingProxyType({})  # made once: lookups are frequent
_RECENT: Final = 1_000  # instances that have ended and still count
_CHANGED_PERCENT: Final = 10


class Loads:
    """The load of each instance, with counts by deployment."""

    def __init__(self) -> None:
        self._by_instance: dict[str, InstanceLoad] = {}
        self._on_workers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._on_gpus: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def copy(self) -> Self:
        """The same loads, apart from these."""
        twin = copy.copy(self)
        twin._part()  # noqa: SLF001 - a copy of this object
        return twin

    def _part(self) -> None:
        self._by_instance = dict(self._by_instance)
        self._on_workers = _copied(self._on_workers)
        self._on_gpus = _copied(self._on_gpus)

    def __iter__(self) -> Iterator[InstanceLoad]:
        return iter(self._by_instance.values())

    def get(self, instance: str) -> InstanceLoad | None:
        """The load of this instance; None if it holds nothing."""
        return self._by_instance.get(instance)

    def on_workers(self, deployment_uid: str) -> Mapping[str, int]:
        """Instances of the deployment by worker id."""
        return self._on_workers.get(deployment_uid, _NONE)

    def on_gpus(self, deployment_uid: str) -> Mapping[str, int]:
        """Instances of the deployment by GPU UUID."""
        return self._on_gpus.get(deployment_uid, _NONE)

    def add(self, load: InstanceLoad) -> None:
        """Adds the load of an instance that has none."""
        self._by_instance[load.instance] = load
        self._on_workers[load.deployment_uid].update(load.workers)
        self._on_gpus[load.deployment_uid].update(load.gpus)

    def remove(self, load: InstanceLoad) -> None:
        """Reverses `add` for this load."""
        del self._by_instance[load.instance]
        for counts, keys in ((self._on_workers, load.workers), (self._on_gpus, load.gpus)):
            counter = counts[load.deployment_uid]
            counter.subtract(keys)
            for key in keys:
                if not counter[key]:
                    del counter[key]
            if not counter:
                del counts[load.deployment_uid]


def _copied(counts: Mapping[str, Counter[str]]) -> defaultdict[str, Counter[str]]:
    return defaultdict(Counter, {uid: of_it.copy() for uid, of_it in counts.items()})


class ObservedDemand:
    """Live and recent instances by their demand.

    Placement uses `known`, which follows only after a good part has changed: everything derived from it is then
    computed anew. `version` rises with each such change.
    """

    def __init__(self) -> None:
        self._counts: Counter[Demand] = Counter()
        self._recent: deque[Demand] = deque()
        self._changes = 0
        self.known: Mapping[Demand, int] = {}
        self.version = 0

    def add(self, demand: Demand, count: int = 1) -> None:
        """Adds instances of this demand."""
        self._counts[demand] += count
        self._changes += count

    def remove(self, demand: Demand) -> None:
        """Notes that an instance has ended. It counts until many others have ended after it."""
        self._recent.append(demand)
        if len(self._recent) > _RECENT:
            oldest = self._recent.popleft()
            self._counts[oldest] -= 1
            self._counts += Counter()  # drops counts of zero
            self._changes += 1

    def settle(self) -> None:
        """Updates `known` if enough has changed."""
        if self._changes and self._changes * 100 >= self._counts.total() * _CHANGED_PERCENT:
            self.known, self._changes = dict(self._counts), 0
            self.version += 1
