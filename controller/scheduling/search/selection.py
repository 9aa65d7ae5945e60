"""Selection by hand: which workers and GPUs the names of an ask mean, and which names mean none."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from controller.domain.placement import Ask
from controller.scheduling.inventory.arrays import Bools, Ints
from controller.scheduling.inventory.capacity import Inventory

_INDEX: Final = re.compile("[0-9]{1,6}")


@dataclass(frozen=True, slots=True)
class UnknownNames:
    """Names that mean no worker and no GPU, or several GPUs.

    Attributes:
        names: of no worker and no GPU.
        ambiguous: names of several GPUs, each with what to write instead.
        needed: whether an instance needs one of these, since it takes all that are named.
    """

    names: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()
    needed: bool = False

    def __len__(self) -> int:
        return len(self.names) + len(self.ambiguous)


@dataclass(frozen=True, slots=True)
class Selection:
    """What an ask selects.

    Attributes:
        workers: by worker: whether it is selected.
        gpus: by GPU: whether it is selected; never the placeholder GPU.
        needed: by worker: whether the ask fits nowhere without it.
        unknown: names that select nothing.
    """

    workers: Bools
    gpus: Bools
    needed: Bools
    unknown: UnknownNames = UnknownNames()


def select(inventory: Inventory, ask: Ask) -> Selection:
    """Looks up the names of an ask. Everything is selected where it names nothing."""
    workers, gpus = inventory.workers, inventory.gpus
    selected, chosen = np.ones(len(workers.facts), dtype=np.bool_), np.ones(len(gpus.uuid) + 1, dtype=np.bool_)
    needed = np.zeros_like(selected)
    chosen[-1] = False
    if not ask.workers and not ask.gpus:
        return Selection(selected, chosen, needed)
    worker_rows = {name: inventory.row_of_name.get(name) for name in ask.workers}
    gpu_rows = {name: gpu_rows_named(inventory, name) for name in ask.gpus}
    selected[:] = not ask.workers
    selected[[row for row in worker_rows.values() if row is not None]] = True
    if ask.gpus:
        chosen[:] = False
        chosen[[int(rows[0]) for rows in gpu_rows.values() if len(rows) == 1]] = True
        owners = gpus.worker[chosen]
        if not ask.workers:  # if both are named, GPUs of other workers give count_mismatch
            selected[:] = False
            selected[owners] = True
        if ask.all_gpus:
            needed[owners] = True
    if ask.all_workers:
        needed |= selected
    missing_workers = [name for name, row in worker_rows.items() if row is None]
    missing_gpus = [name for name, rows in gpu_rows.items() if not len(rows)]
    ambiguous = [ambiguity(inventory, name, rows) for name, rows in gpu_rows.items() if len(rows) > 1]
    short_of_gpus = ask.all_gpus and bool(missing_gpus or ambiguous)
    unknown = UnknownNames(
        (*missing_workers, *missing_gpus),
        tuple(ambiguous),
        short_of_gpus or (ask.all_workers and bool(missing_workers)),
    )
    return Selection(selected, chosen, needed & selected, unknown)


def gpu_rows_named(inventory: Inventory, name: str) -> Ints:
    """The rows of the GPUs that a UUID or worker:index names: one, none, or several of different makes."""
    row = inventory.gpu_row(name)
    if row is not None:
        return np.array([row], dtype=np.int64)
    worker_name, _, index = name.rpartition(":")
    worker = inventory.row_of_name.get(worker_name)
    if worker is None or not _INDEX.fullmatch(index):
        return np.zeros(0, dtype=np.int64)
    first, end = inventory.workers.first_gpu[worker : worker + 2]
    rows: Ints = first + np.flatnonzero(inventory.gpus.index[first:end] == int(index))
    return rows


def ambiguity(inventory: Inventory, name: str, rows: Iterable[int]) -> str:
    """What to write instead of a name that several GPUs have."""
    gpus = inventory.gpus
    found = (f"{gpus.uuid[row]} ({gpus.kinds[int(gpus.kind[row])].vendor})" for row in rows)
    return f"{name} means {' or '.join(found)}; write the UUID"
