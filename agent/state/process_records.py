"""Processes, as the journal records them and as /proc shows them. Pure data."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from schemas.wire import ClaimOrder, ExitReason, ProcessReport, ProcessState, StartOrder, Wire

MAX_RECEIPTS_BYTES: Final = 3 * 2**20  # of a hello, which may have 8 MiB in all
RefusalCode = Literal["old_term", "old_epoch", "claim_conflict", "bad_command", "unknown_device", "shutting_down"]


class ProcessKey(NamedTuple):
    """Identifies a process over all starts."""

    instance: str
    epoch: int
    rank: int


class StopPlan(Wire, frozen=True, kw_only=True):
    """A decided stop, journalled so that a restarted agent continues it."""

    reason: ExitReason
    drain_time_s: float


class ProcessRecord(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """One process. `order` is dropped when it has exited, because its environment may hold secrets.

    `ready_s` is on the agent's clock (seconds since boot), so it stays valid across the agent's restarts.
    """

    instance: str
    epoch: int
    rank: int
    deployment: str = ""
    state: ProcessState
    seq: int = 0
    reason: ExitReason | None = None
    exit_code: int | None = None
    message: str = ""
    log_line: str | None = None  # the part of the message that is a line of its log; set at its exit
    pid: int | None = None
    pid_start_ticks: int | None = None
    parent_pid: int | None = None  # of the program that records its end; None: a container, or of an earlier version
    parent_start_ticks: int | None = None
    uid: int | None = None  # None: the agent's
    image_digest: str | None = None  # of its container's image
    image_repository: str | None = None  # of the digest
    # Of its models of the hub, by `org/name@revision`.
    model_commits: dict[str, str] = msgspec.field(default_factory=dict)
    boot_id: str
    port: int | None = None
    ready: bool = False
    ready_s: float | None = None
    order: StartOrder | None = None
    stop: StopPlan | None = None
    refusal: RefusalCode | None = None  # its start was refused: it never ran and never will
    acked: bool = False  # the controller has stored the exit; the record is kept to recognise repeated commands

    @property
    def key(self) -> ProcessKey:
        return ProcessKey(self.instance, self.epoch, self.rank)

    @property
    def alive(self) -> bool:
        """Whether the process or its group may still hold its devices."""
        return self.state != "exited"

    @property
    def claims(self) -> tuple[ClaimOrder, ...]:
        """The devices that it may hold; empty once it has exited."""
        return () if self.order is None else self.order.claims

    def report(self) -> ProcessReport:
        return ProcessReport(**{name: getattr(self, name) for name in _REPORTED})


def repositories_of(records: Iterable[ProcessRecord]) -> dict[str, set[str]]:
    """The hub's models in use, by process name."""
    return {
        name_of(record.key): {fetch.repo for fetch in record.order.fetches}
        for record in records
        if record.order is not None and record.order.fetches
    }


def receipts_of(records: Iterable[ProcessRecord]) -> tuple[str, ...]:
    """Receipts, as many as fit into a hello; the controller takes other processes for strays."""
    receipts: list[str] = []
    left = MAX_RECEIPTS_BYTES
    for receipt in (record.order.receipt for record in records if record.order is not None and record.order.receipt):
        left -= len(receipt)
        if left < 0:
            break
        receipts.append(receipt)
    return tuple(receipts)


def name_of(key: ProcessKey) -> str:
    return f"{key.instance}.{key.epoch}.{key.rank}"


_REPORTED: Final = frozenset(ProcessReport.__struct_fields__) & frozenset(ProcessRecord.__struct_fields__)


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process of /proc. `marked`: the key in its environment, if any."""

    pid: int
    group: int
    session: int
    start_ticks: int
    zombie: bool
    marked: ProcessKey | None = None
    parent: int = 0
