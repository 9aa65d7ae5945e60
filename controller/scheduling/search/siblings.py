"""Where the other instances of an ask's deployment run, so that it can keep apart from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.domain.placement import Ask
from controller.scheduling.inventory.arrays import Bools, Ints
from controller.scheduling.inventory.capacity import Inventory
from controller.scheduling.search.rank import Fitting, Ranking

_FEW: Final = 256  # GPUs that are looked up one by one


@dataclass(frozen=True, slots=True)
class Siblings:
    """The instances of one deployment, as the inventory has them now."""

    inventory: Inventory
    deployment_uid: str

    @property
    def exist(self) -> bool:
        """Whether any is placed."""
        return bool(self.inventory.deployment_on(self.deployment_uid)[0])

    def groups(self) -> Ints:
        """The groups of their workers."""
        return self.inventory.groups_on(self.inventory.deployment_on(self.deployment_uid)[0])

    def hold_any(self, choice: Sequence[Ints]) -> bool:
        """Whether one of them is on any of these GPUs, by rank."""
        return any(bool(self.hold(rows).any()) for rows in choice)

    def hold(self, slots: Ints) -> Bools:
        """By GPU row: whether one of them has claims there."""
        _, mine = self.inventory.deployment_on(self.deployment_uid)
        if not mine:
            return np.zeros(slots.shape, dtype=np.bool_)
        if slots.size <= _FEW:
            uuids = self.inventory.gpus.uuid
            found = [row < len(uuids) and uuids[row] in mine for row in slots.ravel().tolist()]
            return np.array(found, dtype=np.bool_).reshape(slots.shape)
        rows = [row for uuid in mine if (row := self.inventory.gpu_row(uuid)) is not None]
        held: Bools = np.isin(slots, rows)
        return held

    def on(self, workers: Ints) -> Bools:
        """By worker row: whether one of them runs there."""
        mine, _ = self.inventory.deployment_on(self.deployment_uid)
        facts = self.inventory.workers.facts
        return np.array([facts[row].id in mine for row in workers.tolist()], dtype=np.bool_)


@dataclass(slots=True)
class Apart:
    """Ranks as another ranking does. Of equal groups, those of workers without siblings come first."""

    ranking: Ranking
    siblings: Siblings

    def keys(self, some: Fitting, wanted: Ints) -> tuple[Ints, Ints]:
        """Both keys of these groups."""
        first, second = self.ranking.keys(some, wanted)
        return first, second * 2 + self.siblings.on(some.workers)

    def gpu_keys(self, some: Fitting) -> Ints:
        """One key per GPU."""
        return self.ranking.gpu_keys(some)

    def set_apart(self) -> Ints:
        """Also the groups of workers with siblings."""
        return np.union1d(self.ranking.set_apart(), self.siblings.groups())


def siblings_of(inventory: Inventory, ask: Ask) -> Siblings | None:
    """The siblings from which an ask keeps apart; None: there are none, or it is to be packed with them."""
    if not ask.keeps_apart:
        return None
    found = Siblings(inventory, ask.deployment_uid)
    return found if found.exist else None
