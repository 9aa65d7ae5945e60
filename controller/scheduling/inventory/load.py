"""Where instances run: counts by deployment, worker and GPU. `spread` uses them."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

from controller.domain.holdings import InstanceLoad


class Loads:
    """The load of each instance, with counts by deployment."""

    def __init__(self) -> None:
        self._by_instance: dict[str, InstanceLoad] = {}
        self._on_workers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._on_gpus: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def __iter__(self) -> Iterator[InstanceLoad]:
        return iter(self._by_instance.values())

    def get(self, instance: str) -> InstanceLoad | None:
        """The load of this instance; None if it holds nothing."""
        return self._by_instance.get(instance)

    def on_workers(self, deployment_uid: str) -> Mapping[str, int]:
        """Instances of the deployment by worker id."""
        return self._on_workers.get(deployment_uid, Counter())

    def on_gpus(self, deployment_uid: str) -> Mapping[str, int]:
        """Instances of the deployment by GPU UUID."""
        return self._on_gpus.get(deployment_uid, Counter())

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
