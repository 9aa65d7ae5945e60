"""Passes over one inventory, one after the other, with drains that end in any order."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from controller.domain.admission import Holder, Holders, PendingInstance
from controller.domain.placement import Ask, Placed
from controller.scheduling.admission.admit import ReserveTimes, admit
from controller.scheduling.inventory.capacity import Inventory, without
from controller.scheduling.search.cached_search import find
from controller.scheduling.search.place import place

AGE_S = 90.0  # of what has been pending for long


@dataclass
class Preempted:
    """A preemption: for which instance, which victims, and the devices of the place that they leave."""

    preemptor: PendingInstance
    victims: tuple[Holder, ...]
    devices: frozenset[str]


@dataclass
class Rounds:
    """The fleet over several passes. What is placed runs at once; a victim is requeued with its age once it drains."""

    inventory: Inventory
    waiting: list[PendingInstance]
    staying: dict[str, Holder]
    leaving: dict[str, Holder] = field(default_factory=dict)
    asks: dict[str, Ask] = field(default_factory=dict)
    preempted: list[Preempted] = field(default_factory=list)
    started: list[tuple[PendingInstance, Placed]] = field(default_factory=list)
    thefts: list[tuple[str, str]] = field(default_factory=list)
    draining: set[str] = field(default_factory=set)  # whose promised place is not free yet
    sooner: set[str] = field(default_factory=set)  # started before that, elsewhere

    def run_pass(self) -> None:
        order = sorted(self.waiting, key=lambda one: (-one.priority, one.queued_at))
        order = [replace(one, preempting=self._drains(one.ask.instance)) for one in order]
        holders = Holders(tuple(self.staying.values()), tuple(self.leaving.values()))
        promised = [one for one in order if one.promised is not None]
        self.draining = {
            one.ask.instance
            for one in promised
            if one.promised is not None and find(self.inventory, one.bound_for(one.promised)) is None
        }
        answers = list(admit(self.inventory, order, holders, reserve=ReserveTimes(60), promised=promised))
        self.inventory.begin_pass()  # what is placed stays
        self.waiting = []
        for one, answer in zip(order, answers, strict=True):
            if isinstance(answer.decision, Placed):
                self._start(one, answer.decision)
                continue
            self.waiting.append(one if answer.promised is None else replace(one, promised=answer.promised))
            if answer.victims:
                assert answer.after_victims is not None
                place = devices_of(self.inventory, answer.after_victims)
                self.preempted.append(Preempted(one, answer.victims, place))
                self._drain(answer.victims)

    def _start(self, one: PendingInstance, placed: Placed) -> None:
        taken, name = devices_of(self.inventory, placed), one.ask.instance
        if name in self.draining:
            self.sooner.add(name)
        holder = Holder(name, one.priority, one.queued_at, frozenset(placed.workers), placed.claims)
        for other in self.waiting:
            if other.promised is not None and other.priority >= one.priority and taken & set(other.promised.gpus):
                with without(self.inventory, self.leaving.values()):
                    fits = find(self.inventory, other.bound_for(other.promised)) is not None
                    with without(self.inventory, [holder]):
                        fitted = find(self.inventory, other.bound_for(other.promised)) is not None
                self.thefts += [(name, other.ask.instance)] if fitted and not fits else []
        self.started.append((one, placed))
        self.asks[name] = one.ask
        self.staying[name] = holder

    def _drains(self, name: str) -> bool:
        """Whether a victim of this instance has not ended."""
        of = [victim for one in self.preempted if one.preemptor.ask.instance == name for victim in one.victims]
        return any(victim.instance in self.leaving for victim in of)

    def _drain(self, victims: Sequence[Holder]) -> None:
        for victim in victims:
            self.leaving[victim.instance] = self.staying.pop(victim.instance)
            ask = self.asks[victim.instance].for_instance(f"{victim.instance}'")
            self.waiting.append(PendingInstance(ask, victim.priority, queued_at=victim.queued_at))

    def end_some(self, chance: Random, share: float) -> None:
        """Some of what drains has ended."""
        for name in sorted(self.leaving):
            if chance.random() < share:
                self.inventory.exclude(self.leaving.pop(name).claims)
                self.inventory.remove_load([name])

    def could_hold(self, ask: Ask) -> bool:
        """Whether the ask would fit if all had ended that drains, and nothing were reserved."""
        with without(self.inventory, self.leaving.values()):
            return find(self.inventory, ask) is not None


def start(inventory: Inventory, running: Sequence[tuple[Ask, int]], waiting: Sequence[PendingInstance]) -> Rounds:
    """Rounds in which these run, each with its priority, as far as they fit."""
    priorities = {ask.instance: priority for ask, priority in running}
    placed = [one for one in place(inventory, [ask for ask, _ in running]) if isinstance(one, Placed)]
    inventory.begin_pass()
    holders = {
        one.instance: Holder(one.instance, priorities[one.instance], float(n), frozenset(one.workers), one.claims)
        for n, one in enumerate(placed)
    }
    return Rounds(inventory, list(waiting), holders, asks={ask.instance: ask for ask, _ in running})


def devices_of(inventory: Inventory, placed: Placed) -> frozenset[str]:
    """The GPUs of a place."""
    return frozenset(claim.device for claim in placed.claims if inventory.gpu_row(claim.device) is not None)


def play(rounds: Rounds, chance: Random, passes: int) -> None:
    """Passes, with drains that end in between."""
    for number in range(passes):
        rounds.run_pass()
        rounds.end_some(chance, 0.4 if number < passes // 2 else 1)
