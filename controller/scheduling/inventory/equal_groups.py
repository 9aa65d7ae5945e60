"""Groups in the same state: a search ranks one of each, so its cost follows the states of a fleet, not its size."""

from typing import Final

import numpy as np

from controller.scheduling.inventory.arrays import Bools, Ints
from controller.scheduling.inventory.groups import GroupTable, LogReader, TouchLog
from controller.scheduling.inventory.tables import GpuTable, WorkerTable

_STATES_PER_GROUP: Final = 4  # states that are remembered; beyond it they are numbered anew


class EqualGroups:
    """Numbers the states of groups: all that checks and rankings read of a group's GPUs and its host."""

    def __init__(self, workers: WorkerTable, gpus: GpuTable, groups: GroupTable, log: TouchLog) -> None:
        self._workers, self._gpus, self._groups = workers, gpus, groups
        self._log = LogReader(log, len(groups.worker))
        self._state: Ints = np.zeros(len(groups.worker), dtype=np.int64)
        self._number: dict[bytes, int] = {}
        self._example: dict[int, int] = {}
        self._number_all()

    def refresh(self) -> None:
        """Updates the groups that changed since the last call."""
        rows = self._log.changed()
        if rows is None:
            return
        if len(rows) == len(self._state) or len(self._number) > _STATES_PER_GROUP * (len(self._state) + 1):
            self._number_all()
            return
        left = set(self._state[rows].tolist())
        self._state[rows] = self._numbers(rows)
        self._example.update(zip(self._state[rows].tolist(), rows.tolist(), strict=True))
        for state in left:
            members = self._state == state
            example = int(members.argmax())
            if members[example]:
                self._example[state] = example
            else:
                self._example.pop(state, None)

    def examples(self, apart: Ints) -> Ints:
        """One group of each state, other than those set apart."""
        left = set(apart.tolist())
        chosen = [example for example in self._example.values() if example not in left]
        for state in [state for state, example in self._example.items() if example in left]:
            other = self._first_in(self._state == state, apart)
            if other is not None:
                chosen.append(other)
        return np.array(chosen, dtype=np.int64)

    def first_like(self, groups: Ints, apart: Ints) -> int | None:
        """The first group that is in the state of any of these, other than those set apart; None: there is none."""
        states = np.unique(self._state[groups])
        if len(states) != 1:
            return self._first_in(np.isin(self._state, states), apart)
        return self._first_in(self._state == states[0], apart)

    def _first_in(self, members: Bools, apart: Ints) -> int | None:
        members[apart] = False
        found = int(members.argmax())
        return found if members[found] else None

    def _number_all(self) -> None:
        self._number.clear()
        self._state[:] = self._numbers(np.arange(len(self._state)))
        self._example = dict(zip(self._state.tolist(), range(len(self._state)), strict=True))

    def _numbers(self, rows: Ints) -> list[int]:
        gpus, workers = self._gpus, self._workers
        slots, hosts = self._groups.gpus[rows], self._groups.worker[rows]
        of_gpus = (
            gpus.free, gpus.whole, gpus.total, gpus.kind, gpus.capability, gpus.claimed, gpus.claims, gpus.instances,
            gpus.mig, gpus.cordoned,
        )  # fmt: skip
        of_hosts = (workers.memory, workers.memory_claimed, workers.cpu, workers.cpu_claimed, workers.instances)
        width = slots.shape[1]
        figures = np.empty((len(rows), len(of_gpus) * width + len(of_hosts)), dtype=np.int64)
        for number, column in enumerate(of_gpus):
            figures[:, number * width : (number + 1) * width] = column[slots]
        for number, column in enumerate(of_hosts, len(of_gpus) * width):
            figures[:, number] = column[hosts]
        known = self._number
        return [known.setdefault(one.tobytes(), len(known)) for one in figures]
