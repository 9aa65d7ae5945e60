"""Rehearses an apply in memory until nothing changes: stops, creations, placement passes, preemptions. No I/O.

It runs in rounds, like the reconcilers. Each deployment takes its step, one pass places the pending instances, then
stopping instances end and placed ones run. So a rollout frees only what it really stops: one instance, and the next
only after the successor is placed.
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
from controller.domain.instances import DeploymentSnapshot
from controller.domain.placement import Ask, Need, Placed, Unplaced
from controller.scheduling.admission.admit import AdmissionDecision, ReserveTimes, admit
from controller.scheduling.explain.unplaced import headline
from controller.scheduling.inventory.capacity import Inventory

# Beyond these bounds, the rest of each rollout counts as stopped at once, so that a plan ends soon.
_MAX_ROUNDS: Final = 200
_MAX_DECISIONS: Final = 50_000
_NEWEST: Final = 1e12  # seconds since the epoch: holders created by the rehearsal are younger than all others


@dataclass(frozen=True, slots=True)
class Present:
    """The present state, from one snapshot. A rehearsal consumes the inventory.

    Attributes:
        holdings: the claims of each instance.
        holders: the instances with claims; only needed if instances may stop or be preempted.
        deployments: the existing deployments of the file, after the apply, by uid.
        successors: asks of the successors of preempted instances.
        no_preemption: why new instances of a deployment of the file may not preempt, by the deployment's uid.
    """

    inventory: Inventory
    holdings: Holdings = field(default_factory=Holdings)
    holders: Holders = field(default_factory=Holders)
    queue: Queue = field(default_factory=Queue)
    deployments: Mapping[str, DeploymentSnapshot] = field(default_factory=dict)
    successors: Successors = field(default_factory=dict)
    no_preemption: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Rehearsed:
    """A pending instance and its outcome.

    Attributes:
        order: the position in the queue: priority, then age.
        uid: the deployment's uid.
        answer: the latest pass's answer; None: not decided.
        placed: its placement.
        waited: the answer that chose its victims.
    """

    pending: PendingInstance
    order: tuple[int, float, int]
    uid: str
    answer: AdmissionDecision | None = None
    placed: Placed | None = None
    waited: AdmissionDecision | None = None
    victims: list[Holder] = field(default_factory=list)


class Rehearsal:
    """One apply of a complete file, all documents at once."""

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
        deployments, holders = present.deployments, present.holders
        self._uids: dict[str, str] = {}  # the deployments' uids of instances that this rehearsal placed
        self._gpus = frozenset(self._inventory.gpus.uuid)
        self._effects = {effect.uid: effect for effect in effects}
        self._rollouts = {
            effect.uid: Rollout(deployments[effect.uid]) for effect in effects if effect.uid in deployments
        }
        self._asks = {effect.uid: effect.ask(_known(deployments.get(effect.uid))) for effect in effects}
        self.planned: dict[str, list[Rehearsed]] = {effect.uid: [] for effect in effects}
        self._waiting: dict[str, Rehearsed] = {}
        self.staying = {holder.instance: self._changed(holder) for holder in holders.staying}
        self._leaving = {holder.instance: holder for holder in holders.leaving}
        self._relocating = holders.relocating
        self._stopping = set(self._leaving)
        self._marked: list[Holder] = []
        self._decisions = 0
        self._numbers: dict[str, int] = {}
        self._foreign = [pending for pending in self._queue.awaited if pending.ask.deployment_uid not in self._effects]
        self._enqueue_present()

    def _changed(self, holder: Holder) -> Holder:
        uid = self._uid_of(holder.instance)
        if uid not in self._rollouts:
            return holder
        spec = self._rollouts[uid].snapshot.spec
        return replace(holder, priority=spec.priority, movable=spec.movable)

    def _uid_of(self, instance: str) -> str:
        if instance in self._uids:
            return self._uids[instance]
        held = self._holdings.get(instance)
        return next(iter(held.by_device.values())).deployment_uid if held is not None else ""

    def _enqueue_present(self) -> None:
        """Enqueues the pending instances, and those that new deployments create."""
        rows = {pending.ask.instance: pending for pending in self._queue.waiting}
        for pending in self._queue.waiting:
            if pending.ask.deployment_uid not in self._effects:
                self._enqueue(pending, pending.queued_at, pending.ask.deployment_uid)
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
        """Enqueues an instance of the file, which the plan shows."""
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
        """One step of every deployment; returns whether any instance stops or is created."""
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
                    # The plan shows the successors of instances that it shows, and those of the new revision.
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
                self._stopping.add(victim.instance)
                name = f"the successor of {victim.instance}"
                if self._forget_planned(uid, victim.instance):
                    self._plan(self._effects[uid], name, queued_at=victim.queued_at)
                else:
                    self._succeed(name, uid, victim.priority, self._successors.get(uid), victim.queued_at)
        self._marked = []
        return changed

    def _forget_planned(self, uid: str, instance: str) -> bool:
        """Removes an instance that this plan has placed, to show its successor instead; returns whether it has."""
        planned = self.planned.get(uid, [])
        entry = next((entry for entry in planned if entry.pending.ask.instance == instance), None)
        if entry is not None:
            planned.remove(entry)
        return entry is not None

    def _succeed(
        self, name: str, uid: str, priority: int, ask: Ask | None, queued_at: float, *, preempt: bool = False
    ) -> None:
        if ask is not None:
            why = self._no_preemption.get(uid, "")
            pending = PendingInstance(ask.for_instance(name), priority, preempt, no_preemption=why)
            self._enqueue(pending, queued_at, uid)

    def _leave(self, instances: Iterable[str]) -> None:
        """Stops instances. They hold their claims until the end of the round."""
        for instance in instances:
            if (holder := self.staying.pop(instance, None)) is not None:
                self._leaving[instance] = holder
            if instance in self._leaving:
                self._stopping.add(instance)

    def _pass(self) -> None:
        waiting = sorted(self._waiting.values(), key=lambda entry: entry.order)
        holders = Holders(tuple(self.staying.values()), tuple(self._leaving.values()), self._relocating_now())
        pending = [replace(entry.pending, preempting=self._preempts_still(entry)) for entry in waiting]
        promised = [instance for instance in pending if instance.promised is not None]
        pending = sorted([*pending, *self._awaited()], key=lambda instance: -instance.priority)
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
        """The next instances of rollouts. They come after pending instances of the same priority."""
        yield from self._foreign
        for uid, rollout in self._rollouts.items():
            if (ask := self._asks[uid]) is not None:
                for number in range(rollout.awaited()):
                    name = f"successor {number} of {uid}"
                    yield PendingInstance(ask.for_instance(name), rollout.snapshot.spec.priority, awaited=True)

    def _relocating_now(self) -> tuple[Holder, ...]:
        return tuple(holder for holder in self._relocating if holder.instance in self.staying)

    def _preempts_still(self, entry: Rehearsed) -> bool:
        if entry.victims:
            return any(victim.instance in self._leaving for victim in entry.victims)
        return entry.pending.preempting and bool(self._stopping)

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
        """Ends stopping instances, and starts placed ones; returns whether any instance ended."""
        ended, self._stopping = self._stopping, set()
        self._free(ended)
        answers = ((name, entry.answer.decision) for name, entry in self._waiting.items() if entry.answer is not None)
        unplaced = {name: d.reason or headline(d.explain) for name, d in answers if isinstance(d, Unplaced)}
        for rollout in self._rollouts.values():
            rollout.end(ended, unplaced)
        for pending in self._foreign:
            self._enqueue(replace(pending, awaited=False), math.inf, pending.ask.deployment_uid)
        self._foreign = []
        return bool(ended)

    def blocked(self, uid: str) -> str:
        """The reason why the rollout of this deployment is blocked by its own bounds; empty if it is not."""
        rollout = self._rollouts.get(uid)
        return rollout.blocked() if rollout is not None else ""

    def _free(self, instances: Iterable[str]) -> None:
        for instance in sorted(instances):
            holder = self.staying.pop(instance, None) or self._leaving.pop(instance, None)
            if holder is not None:
                self._inventory.exclude(holder.claims)
                self._inventory.remove_load([instance])


def _known(snapshot: DeploymentSnapshot | None) -> Need | None:
    return None if snapshot is None else snapshot.revisions[snapshot.revision].need
