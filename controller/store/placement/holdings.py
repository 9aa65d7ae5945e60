"""Who holds what: claims by instance, kept up to date by the claims on those devices that changed."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controller.domain.placement import PlannedClaim
from controller.scheduling.inventory.demand import Demand
from controller.scheduling.inventory.load import InstanceLoad

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Held:
    """A claim as it stands, of what it is and whose."""

    deployment_uid: str
    worker_id: str
    gpu: bool
    claim: PlannedClaim


@dataclass(frozen=True, slots=True)
class Holding:
    """All that one instance holds, which is something."""

    by_device: Mapping[str, Held]
    workers: frozenset[str]  # ids
    claims: tuple[PlannedClaim, ...]


class Holdings:
    """The claims of the ledger, as they were at the last take-over."""

    def __init__(self) -> None:
        self._of: dict[str, Holding] = {}
        self._on_device: defaultdict[str, set[str]] = defaultdict(set)

    def get(self, instance: str) -> Holding | None:
        """What this instance holds, None where it holds nothing."""
        return self._of.get(instance)

    def take_over(self, changed: Collection[str], rows: Iterable[Row]) -> Iterator[tuple[str, Holding | None]]:
        """Takes over all claims on the devices that changed; tells whose holding differs, and what it is now."""
        fresh: defaultdict[str, dict[str, Held]] = defaultdict(dict)
        for row in rows:
            fresh[row["instance_id"]][row["device"]] = _held(row)
        looked_at = set(changed)
        known = {instance for uuid in looked_at for instance in self._on_device.get(uuid, ())}
        for instance in known | fresh.keys():
            old = self._of.get(instance)
            before = old.by_device if old is not None else {}
            elsewhere = {uuid: held for uuid, held in before.items() if uuid not in looked_at}
            now = elsewhere | fresh.get(instance, {})
            if now != before:
                yield instance, self._replace(instance, now)

    def _replace(self, instance: str, now: Mapping[str, Held]) -> Holding | None:
        old = self._of.pop(instance, None)
        for uuid in old.by_device if old is not None else ():
            self._on_device[uuid].discard(instance)
        if not now:
            return None
        for uuid in now:
            self._on_device[uuid].add(instance)
        workers = frozenset(held.worker_id for held in now.values())
        self._of[instance] = Holding(now, workers, tuple(held.claim for held in now.values()))
        return self._of[instance]


def load_of(instance: str, holding: Holding) -> InstanceLoad:
    """Where it runs, and what it takes of its leader's worker, which stands for all of them."""
    leading = [held for held in holding.by_device.values() if not held.claim.rank]
    gpus, host = [h.claim for h in leading if h.gpu], [h.claim for h in leading if not h.gpu]
    demand = Demand(
        gpus=len(gpus),
        memory_mib=max((c.memory_mib for c in gpus), default=0),
        exclusive=any(c.exclusive for c in gpus),
        host_memory_mib=sum(c.memory_mib for c in host),
        cpu_milli=sum(c.cpu_milli for c in host),
    )
    on = tuple(uuid for uuid, held in holding.by_device.items() if held.gpu)
    uid = next(iter(holding.by_device.values())).deployment_uid
    return InstanceLoad(instance, uid, tuple(sorted(holding.workers)), on, demand)


def _held(row: Row) -> Held:
    claim = PlannedClaim(
        row["device"], row["memory_mib"], row["cpu_milli"], row["exclusive"], row["position"], row["rank"]
    )
    return Held(str(row["deployment_uid"]), str(row["worker_id"]), row["kind"] == "gpu", claim)
