"""Processes that agents report after the ledger lost commits, their devices, and the plan."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from controller.domain.instances import InstanceState
from controller.domain.phases import InstancePhase
from controller.domain.placement import PlannedClaim
from controller.domain.start_receipts import StartReceipt


@dataclass(frozen=True, slots=True)
class OrphanProcess:
    """A process that runs and is not in the ledger."""

    receipt: StartReceipt
    worker: str  # name
    ready: bool  # the worker can be used
    report: dict[str, Any]  # the agent's newest

    @property
    def state(self) -> str:
        return str(self.report["state"])


class HeldClaim(NamedTuple):
    """A claim in the ledger."""

    instance: str
    memory_mib: int
    cpu_milli: int
    exclusive: bool


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """A device with all its claims. `usable`: present, healthy and not cut into slices.

    Memory that its driver reports as used does not count: the orphaned processes use it already.
    """

    worker_id: str
    gpu: bool
    usable: bool
    memory_mib: int
    reserved_mib: int
    cpu_milli: int
    claims: tuple[HeldClaim, ...]

    def has(self, wanted: PlannedClaim, without: frozenset[str]) -> bool:
        """Whether the claim fits by the rules of placement, if the instances in `without` are gone."""
        held = [c for c in self.claims if c.instance not in without]
        if not self.usable or any(c.exclusive for c in held):
            return False
        if wanted.cpu_milli and wanted.cpu_milli > self.cpu_milli - sum(c.cpu_milli for c in held):
            return False
        if wanted.exclusive:
            return self.gpu and not held and wanted.memory_mib == self.memory_mib
        free_mib = self.memory_mib - self.reserved_mib - sum(c.memory_mib for c in held)
        return not wanted.memory_mib or wanted.memory_mib <= free_mib


@dataclass(frozen=True, slots=True)
class Adopted:
    """An instance that the ledger takes back, with the processes of all its ranks in order."""

    ranks: tuple[OrphanProcess, ...]
    phase: InstancePhase
    before: InstanceState | None  # the ledger's own, older state of it; None if the ledger did not know it
    removed: tuple[str, ...]  # instances without processes, which are removed for it

    @property
    def receipt(self) -> StartReceipt:
        """The leader's."""
        return self.ranks[0].receipt


@dataclass(frozen=True, slots=True)
class NotAdopted:
    """A start that stays out of the ledger. Its processes are stopped."""

    ranks: tuple[OrphanProcess, ...]
    why: str


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """The decisions. `undecided`: number of processes whose workers cannot be used yet."""

    adopted: tuple[Adopted, ...] = ()
    refused: tuple[NotAdopted, ...] = ()
    undecided: int = 0
