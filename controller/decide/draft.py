"""A plan while it is being drawn up."""

from dataclasses import dataclass, field
from datetime import datetime

from controller.decide.liveness import unsent_start
from controller.domain.effects import (
    Create,
    DeploymentEffects,
    DeploymentUpdate,
    Fact,
    Move,
    Release,
    RelocationEnd,
    Remove,
    Restart,
    StopOrderPlan,
    StoreNeed,
    Withdraw,
)
from controller.domain.instances import InstanceFacts
from controller.domain.phases import InstancePhase, check_instance_edge


@dataclass(slots=True)
class Draft:
    """Collects what is to be done; `done()` freezes it. Every phase change passes the edge table here."""

    creates: list[Create] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    releases: list[Release] = field(default_factory=list)
    stops: list[StopOrderPlan] = field(default_factory=list)
    withdrawals: list[Withdraw] = field(default_factory=list)
    removals: list[Remove] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    relocated: list[RelocationEnd] = field(default_factory=list)
    forget_failures: list[str] = field(default_factory=list)
    store_need: StoreNeed | None = None
    update: DeploymentUpdate | None = None
    finish: bool = False
    analyse: int | None = None
    wake_placement: bool = False
    again_after_s: float | None = None

    def move(
        self,
        instance: InstanceFacts,
        to: InstancePhase,
        reason: str = "",
        message: str = "",
        *,
        failures: int | None = None,
        restarts: int | None = None,
        not_before: datetime | None = None,
        stop_reason: str | None = None,
    ) -> None:
        """Plans a phase change, legal by the table."""
        check_instance_edge(instance.id, instance.phase, to)
        self.moves.append(
            Move(
                instance=instance.id,
                expected=instance.phase,
                epoch=instance.epoch,
                to=to,
                reason=reason,
                message=message,
                failures=failures,
                restarts=restarts,
                not_before=not_before,
                stop_reason=stop_reason,
            )
        )

    def release(self, instance: InstanceFacts) -> None:
        """Plans the release of all claims, which is capacity for those who wait.

        Orders that were never sent go with them: a host that is counted as dead may come back and ask for its orders.
        """
        for rank in instance.ranks:
            self.withdraw(instance, rank)
        if instance.claims:
            self.releases.append(Release(instance=instance.id, epoch=instance.epoch))
            self.wake_placement = True

    def release_rank(self, instance: InstanceFacts, rank: int) -> None:
        """Plans the release of one rank's claims; the instance can only end from here on."""
        self.releases.append(Release(instance=instance.id, epoch=instance.epoch, rank=rank))
        self.wake_placement = True

    def withdraw(self, instance: InstanceFacts, rank: int) -> bool:
        """Plans to take the rank's start order back where no agent can have seen it; False where one may have."""
        order = unsent_start(instance, rank)
        if order is not None and Withdraw(order) not in self.withdrawals:
            self.withdrawals.append(Withdraw(order))
        return order is not None

    def remove(self, instance: InstanceFacts) -> None:
        """Plans the end of the row, claims first."""
        self.release(instance)
        self.removals.append(Remove(instance=instance.id, expected=instance.phase, epoch=instance.epoch))

    def again(self, seconds: float) -> None:
        """Asks for another look no later than that."""
        seconds = max(seconds, 0.01)
        self.again_after_s = seconds if self.again_after_s is None else min(self.again_after_s, seconds)

    def done(self) -> DeploymentEffects:
        """The finished plan."""
        return DeploymentEffects(
            creates=tuple(self.creates),
            moves=tuple(self.moves),
            restarts=tuple(self.restarts),
            releases=tuple(self.releases),
            stops=tuple(self.stops),
            withdrawals=tuple(self.withdrawals),
            removals=tuple(self.removals),
            store_need=self.store_need,
            update=self.update,
            finish=self.finish,
            facts=tuple(self.facts),
            relocated=tuple(self.relocated),
            forget_failures=tuple(self.forget_failures),
            analyse=self.analyse,
            wake_placement=self.wake_placement,
            again_after_s=self.again_after_s,
        )
