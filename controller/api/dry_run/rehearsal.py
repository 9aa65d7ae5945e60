"""Plays an apply in memory until nothing changes: stops, creations, placement passes and preemptions. No I/O.

It goes in rounds, as the reconcilers do. Each deployment takes its step, one pass places what is pending, and then what
stops has ended and what was placed runs. So a rollout gives free only what it really stops: one instance, and the next
one only when the successor has its place.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from controller.api.dry_run.candidates import CandidateWatch
from controller.api.dry_run.manifests import ManifestEffect, Successors, instance_name
from controller.api.dry_run.queue import Queue
from controller.api.dry_run.rollouts import Rollout
from controller.domain.admission import Holder, Holders, Holdings, PendingInstance
from controller.domain.instances import DeploymentFacts
from controller.domain.placement import Ask, Need, Placed, Unplaced
from controller.scheduling.admission.admit import AdmissionDecision, ReserveTimes, admit
from controller.scheduling.explain.unplaced import headline
from controller.scheduling.inventory.capacity import Inventory

# Beyond these, the rest of each rollout counts as stopped at once, so that a plan ends soon.
_MAX_ROUNDS: Final = 200
_MAX_DECISIONS: Final = 50_000
_NEWEST: Final = 1e12  # seconds since the epoch: as a holder, what was created here is younger than all others


@dataclass(frozen=True, slots=True)
class Present:
    """The present, read at one moment; a rehearsal consumes the inventory.

    Attributes:
        inventory: what is free.
        holdings: the claims of each instance.
        holders: the instances with claims; needed where anything may stop or be preempted.
        queue: the pending instances.
        facts: the existing deployments of the file, as the apply leaves them, by uid.
        successors: what the successors of preempted instances ask for.
        no_preemption: by uid of a deployment of the file, why its new instances preempt nothing although they may.
    """

    inventory: Inventory
    holdings: Holdings = field(default_factory=Holdings)
    holders: Holders = field(default_factory=Holders)
    queue: Queue = field(default_factory=Queue)
    facts: Mapping[str, DeploymentFacts] = field(default_factory=dict)
    successors: Successors = field(default_factory=dict)
    no_preemption: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Rehearsed:
    """An instance that has no place yet, and what becomes of it.

    Attributes:
        pending: as admission sees it.
        order: by priority, then age.
        uid: of its deployment.
        answer: of the latest pass; None: not decided.
        placed: its place.
        waited: the answer with which it chose victims.
        victims: what it preempts.
    """

    pending: PendingInstance
    order: tuple[int, float, int]
    uid: str
    answer: AdmissionDecision | None = None
    placed: Placed | None = None
    waited: AdmissionDecision | None = None
    victims: list[Holder] = field(default_factory=list)


class Rehearsal:
    """One apply of a whole file, all documents at once."""

    def __init__(
        self,
        present: Present,
        effects: Sequence[ManifestEffect],
        reserve: ReserveTimes,
        watch: CandidateWatch | None = None,
    ) -> None:
        self._watch = watch or CandidateWatch({})
        self._inventory, self._holdings, self._reserve = present.inventory, present.holdings, reserve
        self._queue, self._successors, self._no_preemption = present.queue, present.successors, present.no_preemption
        facts, holders = present.facts, present.holders
        self._uids: dict[str, str] = {}  # of what this rehearsal placed
        self._gpus = frozenset(self._inventory.gpus.uuid)
        self._effects = {effect.uid: effect for effect in effects}
        self._rollouts = {effect.uid: Rollout(facts[effect.uid]) for effect in effects if effect.uid in facts}
        self._asks = {effect.uid: effect.ask(_known(facts.get(effect.uid))) for effect in effects}
        self.planned: dict[str, list[Rehearsed]] = {effect.uid: [] for effect in effects}
        self._waiting: dict[str, Rehearsed] = {}
        self.staying = {one.instance: self._changed(one) for one in holders.staying}
        self._leaving = {one.instance: one for one in holders.leaving}
        self._relocating = holders.relocating
        self._ending = set(self._leaving)
        self._marked: list[Holder] = []
        self._decisions = 0
        self._numbers: dict[str, int] = {}
        self._foreign = [one for one in self._queue.awaited if one.ask.deployment_uid not in self._effects]
        self._enqueue_present()

    def _changed(self, holder: Holder) -> Holder:
        uid = self._uid_of(holder.instance)
        if uid not in self._rollouts:
            return holder
        spec = self._rollouts[uid].facts.spec
        return replace(holder, priority=spec.priority, movable=spec.movable)

    def _uid_of(self, instance: str) -> str:
        if instance in self._uids:
            return self._uids[instance]
        held = self._holdings.get(instance)
        return next(iter(held.by_device.values())).deployment_uid if held is not None else ""

    def _enqueue_present(self) -> None:
        """What is pending already, and what new deployments create."""
        rows = {one.ask.instance: one for one in self._queue.waiting}
        for one in self._queue.waiting:
            if one.ask.deployment_uid not in self._effects:
                self._enqueue(one, one.queued_at, one.ask.deployment_uid)
        for uid, effect in self._effects.items():
            if uid not in self._rollouts:
                for _ in range(effect.to_place):
                    self._plan(effect, self._next_name(effect))
                continue
            for present in self._rollouts[uid].pending():
                self._plan(effect, present.id, rows.get(present.id), present.created_at.timestamp())

    def _next_name(self, effect: ManifestEffect) -> str:
        number = self._numbers[effect.uid] = self._numbers.get(effect.uid, -1) + 1
        return instance_name(effect, number)

    def _plan(
        self, effect: ManifestEffect, name: str, row: PendingInstance | None = None, queued_at: float = math.inf
    ) -> None:
        """Enqueues an instance of the file, which the plan tells."""
        ask = self._asks[effect.uid]
        if ask is not None:
            pending = row or PendingInstance(ask.for_instance(name))
            pending = replace(
                pending,
                priority=effect.spec.priority,
                preempt=effect.spec.preempt,
                no_preemption=self._no_preemption.get(effect.uid, pending.no_preemption),
            )
            self.planned[effect.uid].append(self._enqueue(pending, queued_at, effect.uid))

    def _enqueue(self, pending: PendingInstance, queued_at: float, uid: str) -> Rehearsed:
        self._numbers[""] = self._numbers.get("", 0) + 1
        entry = Rehearsed(pending, (-pending.priority, queued_at, self._numbers[""]), uid)
        self._waiting[pending.ask.instance] = entry
        return entry

    def run(self) -> None:
        """Plays to the end."""
        freed = True
        for _ in range(_MAX_ROUNDS):
            changed = self._step()
            if not changed and not freed:
                return
            self._pass()
            freed = self._end()
            if self._decisions > _MAX_DECISIONS:
                break
        for rollout in self._rollouts.values():
            outdated = rollout.outdated()
            self._free(outdated)
            rollout.end(outdated)
        self._step()
        self._pass()

    def _step(self) -> bool:
        """One step of every deployment; whether anything stops or is created."""
        changed = bool(self._marked)
        for uid, rollout in self._rollouts.items():
            step = rollout.step()
            self._free(step.removed)
            for instance in step.removed:
                if (gone := self._waiting.pop(instance, None)) is not None:
                    self.planned[uid].remove(gone)
            self._leave(step.stopping)
            for create in step.creates:
                effect = self._effects[uid]
                if create.replaces is None:
                    name = self._next_name(effect)
                    self._plan(effect, name)
                else:
                    name = f"the successor of {create.replaces}"
                    born = create.born.timestamp() if create.born is not None else math.inf
                    # Of the new revision's instances, and of those that this plan places, the plan tells what follows.
                    if self._forget_planned(uid, create.replaces) or effect.change == "replace":
                        self._plan(effect, name, queued_at=born)
                    else:
                        self._succeed(
                            name, uid, effect.spec.priority, self._asks[uid], born, preempt=effect.spec.preempt
                        )
                rollout.add(name, create)
            changed |= bool(step.removed or step.stopping or step.creates)
        for victim in self._marked:
            uid = self._uid_of(victim.instance)
            if uid not in self._rollouts:
                self._ending.add(victim.instance)
                name = f"the successor of {victim.instance}"
                if self._forget_planned(uid, victim.instance):
                    self._plan(self._effects[uid], name, queued_at=victim.queued_at)
                else:
                    self._succeed(name, uid, victim.priority, self._successors.get(uid), victim.queued_at)
        self._marked = []
        return changed

    def _forget_planned(self, uid: str, instance: str) -> bool:
        """Whether this plan has placed the instance; its successor is told in its stead."""
        planned = self.planned.get(uid, [])
        entry = next((one for one in planned if one.pending.ask.instance == instance), None)
        if entry is not None:
            planned.remove(entry)
        return entry is not None

    def _succeed(
        self, name: str, uid: str, priority: int, ask: Ask | None, queued_at: float, *, preempt: bool = False
    ) -> None:
        """Enqueues the successor of a victim."""
        if ask is not None:
            why = self._no_preemption.get(uid, "")
            pending = PendingInstance(ask.for_instance(name), priority, preempt, no_preemption=why)
            self._enqueue(pending, queued_at, uid)

    def _leave(self, instances: Iterable[str]) -> None:
        """These stop: they hold their claims until the end of the round."""
        for instance in instances:
            if (holder := self.staying.pop(instance, None)) is not None:
                self._leaving[instance] = holder
            if instance in self._leaving:
                self._ending.add(instance)

    def _pass(self) -> None:
        """One placement pass."""
        waiting = sorted(self._waiting.values(), key=lambda entry: entry.order)
        holders = Holders(tuple(self.staying.values()), tuple(self._leaving.values()), self._relocating_now())
        pending = [replace(one.pending, preempting=self._preempts_still(one)) for one in waiting]
        promised = [one for one in pending if one.promised is not None]
        pending = sorted([*pending, *self._awaited()], key=lambda one: -one.priority)
        watched = self._watch.before_each(self._inventory, pending)
        answers = admit(
            self._inventory, watched, holders, reserve=self._reserve, reserved=self._queue.reserved, promised=promised
        )
        for entry, answer in zip(waiting, answers, strict=True):
            self._decisions += 1
            entry.answer = answer
            if isinstance(answer.decision, Placed):
                self._place(entry, answer.decision)
                continue
            if answer.promised is not None:
                entry.pending = replace(entry.pending, promised=answer.promised)
            if answer.victims:
                entry.waited = entry.waited or answer
                entry.victims += answer.victims
        for entry in waiting:
            if entry.answer is not None and entry.answer.victims and entry.placed is None:
                self._mark(entry, entry.answer.victims)

    def _awaited(self) -> Iterator[PendingInstance]:
        """What rollouts create next: it comes after what is pending with its priority."""
        yield from self._foreign
        for uid, rollout in self._rollouts.items():
            if (ask := self._asks[uid]) is not None:
                for number in range(rollout.awaited()):
                    name = f"successor {number} of {uid}"
                    yield PendingInstance(ask.for_instance(name), rollout.facts.spec.priority, awaited=True)

    def _relocating_now(self) -> tuple[Holder, ...]:
        return tuple(one for one in self._relocating if one.instance in self.staying)

    def _preempts_still(self, entry: Rehearsed) -> bool:
        if entry.victims:
            return any(victim.instance in self._leaving for victim in entry.victims)
        return entry.pending.preempting and bool(self._ending)

    def _place(self, entry: Rehearsed, placed: Placed) -> None:
        entry.placed = placed
        self._watch.settle(entry.uid)
        self._uids[placed.instance] = entry.uid
        del self._waiting[placed.instance]
        effect, rollout = self._effects.get(entry.uid), self._rollouts.get(entry.uid)
        if rollout is not None:
            rollout.place(placed, self._gpus)
        spec = effect.spec if effect is not None else None
        self.staying[placed.instance] = Holder(
            instance=placed.instance,
            priority=entry.pending.priority,
            queued_at=min(entry.order[1], _NEWEST),
            workers=frozenset(placed.workers),
            claims=tuple(placed.claims),
            task=spec is not None and spec.restart != "always",
            movable=spec is None or spec.movable,
            protected=spec is not None and bool(spec.minimum_runtime),
            serves=spec is not None and spec.takes_requests,
        )

    def _mark(self, entry: Rehearsed, victims: Iterable[Holder]) -> None:
        for victim in victims:
            holder = self.staying.pop(victim.instance, None)
            if holder is None:
                continue
            self._leaving[victim.instance] = holder
            self._marked.append(holder)
            rollout = self._rollouts.get(self._uid_of(victim.instance))
            if rollout is not None:
                rollout.preempt(victim.instance, entry.pending.ask.instance)

    def _end(self) -> bool:
        """What stops has ended, and what was placed runs; whether anything ended."""
        ended, self._ending = self._ending, set()
        self._free(ended)
        answers = ((name, one.answer.decision) for name, one in self._waiting.items() if one.answer is not None)
        unplaced = {name: one.reason or headline(one.explain) for name, one in answers if isinstance(one, Unplaced)}
        for rollout in self._rollouts.values():
            rollout.end(ended, unplaced)
        for one in self._foreign:
            self._enqueue(replace(one, awaited=False), math.inf, one.ask.deployment_uid)
        self._foreign = []
        return bool(ended)

    def blocked(self, uid: str) -> str:
        """What holds up the rollout of this deployment of the file; empty: nothing of its own."""
        rollout = self._rollouts.get(uid)
        return rollout.blocked() if rollout is not None else ""

    def _free(self, instances: Iterable[str]) -> None:
        for instance in sorted(instances):
            holder = self.staying.pop(instance, None) or self._leaving.pop(instance, None)
            if holder is not None:
                self._inventory.exclude(holder.claims)
                self._inventory.remove_load([instance])


def _known(facts: DeploymentFacts | None) -> Need | None:
    return None if facts is None else facts.revisions[facts.revision].need
