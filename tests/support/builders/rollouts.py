"""A deployment in a rollout, stepped by the real decision in a world of its own: no database, time by hand."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from controller.decide.instances.decide import decide
from controller.domain.effects import DeploymentEffects
from controller.domain.events import NewEvent
from controller.domain.instances import (
    ClaimedWorker,
    DeploymentSnapshot,
    InstanceState,
    Revision,
    StoredRelocation,
)
from controller.domain.phases import LIVE, InstancePhase
from controller.domain.placement import NeedError
from controller.domain.restart_delays import RestartSettings
from controller.domain.rollouts import RequestOutcomes, RolloutRecord, RolloutSnapshot
from schemas.manifest.deployment import DeploymentSpec
from support.builders.facts import NEED, NOW, deployment, host, instance, process, spec

P = InstancePhase
SETTINGS = RestartSettings()


@dataclass
class RollingWorld:
    """Its instances do what a test says; all else is what steps of the deployment decide.

    Attributes:
        capacity: of instances that may hold a place at once.
        bad: revisions whose instances exit instead of coming up.
        drains_s: how long a stopping instance takes.
        update: of the spec.
        silent: instances whose worker says nothing; it is lost after 60 s.
        crashing: instances that exit at each start.
    """

    replicas: int = 4
    update: str = "rolling"
    rollout: dict[str, Any] = field(default_factory=dict)
    start_timeout: float = 60.0
    capacity: int = 100
    bad: set[int] = field(default_factory=set)
    drains_s: float = 3.0
    silent: dict[str, datetime] = field(default_factory=dict)
    crashing: set[str] = field(default_factory=set)
    outcomes: RequestOutcomes = field(default_factory=RequestOutcomes)
    now: datetime = NOW
    revision: int = 1
    generation: int = 1
    paused: bool = False
    asked: int = 0
    record: RolloutRecord | None = None
    instances: dict[str, InstanceState] = field(default_factory=dict)
    events: list[NewEvent] = field(default_factory=list)
    needs: dict[int, NeedError] = field(default_factory=dict)
    relocations: list[StoredRelocation] = field(default_factory=list)
    least_ready: int = 10**6
    most_in_all: int = 0
    status: tuple[str, str] = ("", "")
    watch: Callable[["RollingWorld"], None] = lambda _: None
    _number: int = 0
    placed_before: int | None = None
    _specs: dict[tuple[int, str], DeploymentSpec] = field(default_factory=dict)

    def facts(self) -> DeploymentSnapshot:
        given = self._specs.get((self.replicas, self.update))
        if given is None:
            given = self._specs[self.replicas, self.update] = spec(
                replicas=self.replicas, update=self.update, rollout=self.rollout, start_timeout=self.start_timeout
            )
        revisions = {
            n: Revision(n, given, f"hash-{n}", NOW, need=None if n in self.needs else NEED,
                             need_error=self.needs.get(n))
            for n in range(1, self.generation + 1)
        }  # fmt: skip
        return deployment(
            *self.instances.values(), spec=given, revision=self.revision, generation=self.generation,
            revisions=revisions, now=self.now, relocations=tuple(self.relocations),
            rollout=RolloutSnapshot(self.record, self.paused, self.asked, self.outcomes)
            if self.update == "rolling" else None,
            hosts=(host(), *(self._host_of(name, since) for name, since in self.silent.items())),
            placed_before=self.placed_before,
        )  # fmt: skip

    def _host_of(self, name: str, since: datetime) -> ClaimedWorker:
        lost = (self.now - since).total_seconds() >= 60
        return host(f"w-{name}", phase="lost" if lost else "unreachable", reason="silent")

    def step(self) -> DeploymentEffects:
        """One step of the deployment, and what placement and agents do about it at once."""
        effects = decide(self.facts(), SETTINGS)
        self.record = effects.rollout or self.record
        self.events += effects.events
        if effects.status is not None:
            self.status = (str(effects.status.phase), effects.status.reason)
        for change in effects.phase_changes:
            self._set(change.instance, phase=change.to, reason=change.reason, message=change.message,
                      failures=self.instances[change.instance].failures if change.failures is None
                      else change.failures, not_before=change.not_before,
                      stop_reason=change.stop_reason or self.instances[change.instance].stop_reason,
                      phase_since=self.now)  # fmt: skip
        for restart in effects.restarts:
            self._set(restart.instance, phase=P.STARTING, phase_since=self.now, processes=(process("starting"),),
                      restarts_now=False)  # fmt: skip
        over = {end.id for end in effects.relocation_ends}
        self.relocations = [one for one in self.relocations if one.id not in over]
        for removal in effects.removals:
            del self.instances[removal.instance]
        for create in effects.creates:
            self._number += 1
            name = f"i{self._number:03}"
            self.instances[name] = instance(name, "pending", revision=create.revision, replaces=create.replaces,
                                            created_at=self.now, phase_since=self.now)  # fmt: skip
            if (old := create.replaced) is not None:
                self.relocations.append(StoredRelocation(self._number, old.instance, old.epoch, "", name, old.purpose))
        self._note()
        return effects

    def _place(self) -> None:
        for one in list(self.instances.values()):
            holding = sum(bool(i.claims) for i in self.instances.values())
            placeable = one.revision == self.revision or (
                self.update == "rolling"
                and self.record is not None
                and self.record.holds
                and one.revision == self.record.stable
            )
            if one.phase is P.PENDING and placeable and holding < self.capacity:
                placed = instance(one.id, "starting")
                self._set(one.id, phase=P.STARTING, claims=placed.claims, commands=placed.commands, epoch=1,
                          processes=(process("starting"),), phase_since=self.now)  # fmt: skip

    def _agents(self) -> None:
        for one in list(self.instances.values()):
            if one.phase is P.STARTING and one.process() is not None:
                state = process("exited", "exit", 1) if self._is_bad(one) else process("running")
                self._set(one.id, processes=(state,))
            if (
                one.phase is P.STOPPING
                and one.id not in self.silent
                and (self.now - one.phase_since).total_seconds() >= self.drains_s
            ):
                self._set(one.id, processes=(process("exited", "stopped", 0),))

    def _is_bad(self, one: InstanceState) -> bool:
        return one.revision in self.bad or one.id in self.crashing

    def play(self, seconds: float, tick_s: float = 1.0) -> "RollingWorld":
        """Lets time pass: steps, placement and agents each tick."""
        for _ in range(round(seconds / tick_s)):
            for _ in range(2):
                self.step()
                self._place()
                self._agents()
                self._note()
            self.watch(self)
            self.now += timedelta(seconds=tick_s)
        return self

    def apply(self, *, back_to: int | None = None) -> "RollingWorld":
        """A new revision, or an older one again."""
        self.generation += 1
        self.placed_before = sum(i.phase in LIVE or i.stop_reason == "new_revision" for i in self.instances.values())
        self.revision = self.generation if back_to is None else back_to
        return self

    def pause(self, *, paused: bool) -> "RollingWorld":
        self.paused, self.asked = paused, self.asked + 1
        return self

    def restart(self) -> "RollingWorld":
        """Its user restarts all of its instances."""
        for name in self.instances:
            self._set(name, restarts_now=True)
        return self

    def kill(self, name: str) -> None:
        """Its process exits."""
        self._set(name, processes=(process("exited", "exit", 1),))

    def hang(self, name: str, phase: str) -> None:
        """It stays in a phase in which it does not serve, until it is stopped."""
        if phase == "backoff":
            self.crashing.add(name)
            self.kill(name)
            return
        known = {"unhealthy": (process("unhealthy"),), "unreachable": (process("running"),)}
        self._set(name, phase=P(phase), phase_since=self.now, processes=known.get(phase, ()))
        if phase == "unreachable":
            claims = tuple(replace(c, worker_id=f"w-{name}") for c in self.instances[name].claims)
            self._set(name, claims=claims)
            self.silent[name] = self.now

    def returns(self, name: str) -> None:
        """The worker of a silent one is back, where it has run on."""
        del self.silent[name]
        if name in self.instances:
            claims = tuple(replace(c, worker_id="w1") for c in self.instances[name].claims)
            self._set(name, claims=claims)

    def begin_bounds(self) -> None:
        """Counts least and most anew."""
        self.least_ready, self.most_in_all = 10**6, 0

    def running(self, revision: int | None = None) -> int:
        return sum(
            i.phase is P.RUNNING and (revision is None or i.revision == revision) for i in self.instances.values()
        )

    def of(self, revision: int) -> list[InstanceState]:
        return [i for i in self.instances.values() if i.revision == revision]

    def reasons(self) -> list[str]:
        return [str(e.reason) for e in self.events if str(e.reason).startswith("rollout_")]

    @property
    def state(self) -> str:
        return str(self.record.state) if self.record is not None else ""

    def _note(self) -> None:
        self.least_ready = min(self.least_ready, self.running())
        self.most_in_all = max(self.most_in_all, len(self.instances))

    def _set(self, name: str, **fields: Any) -> None:
        self.instances[name] = replace(self.instances[name], **fields)


def rolled_out(**fields: Any) -> RollingWorld:
    """A deployment whose first revision runs for long."""
    world = RollingWorld(**fields)
    world.play(6).play(1000, tick_s=100.0)
    assert (world.state, world.running()) == ("complete" if world.update == "rolling" else "", world.replicas)
    world.begin_bounds()
    world.events.clear()
    return world
