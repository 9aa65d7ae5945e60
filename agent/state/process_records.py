"""What the agent knows of a process: the record that the journal keeps, and what /proc shows. Pure data."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from schemas.wire import ClaimOrder, ExitReason, ProcessReport, ProcessState, StartOrder, Wire

MAX_RECEIPTS_BYTES: Final = 3 * 2**20  # of a hello, which may have 8 MiB in all
RefusalCode = Literal["old_term", "old_epoch", "claim_conflict", "bad_command", "unknown_device", "shutting_down"]


class ProcessKey(NamedTuple):
    """Identifies one process over the agent's life."""

    instance: str
    epoch: int
    rank: int


class StopPlan(Wire, frozen=True, kw_only=True):
    """A decided stop: its reason and its time limit. It is journalled, so that a restarted agent continues it."""

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
    parent_pid: int | None = None  # of the program that records its end; None: a container, or an earlier agent's
    parent_start_ticks: int | None = None
    uid: int | None = None  # as which it runs; None: as the agent
    image_digest: str | None = None  # of the image that its container runs
    image_repository: str | None = None  # that the digest is of
    # Of the models of the hub that it was given, by `org/name@revision`.
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
        """Whether the process, or anything of its group, may still hold its devices."""
        return self.state != "exited"

    @property
    def claims(self) -> tuple[ClaimOrder, ...]:
        """The devices that it may hold; none once it has exited."""
        return () if self.order is None else self.order.claims

    def report(self) -> ProcessReport:
        return ProcessReport(**{name: getattr(self, name) for name in _REPORTED})


def repositories_of(records: Iterable[ProcessRecord]) -> dict[str, set[str]]:
    """The models of the hub that each of these processes uses, by its name."""
    return {
        name_of(record.key): {fetch.repo for fetch in record.order.fetches}
        for record in records
        if record.order is not None and record.order.fetches
    }


def receipts_of(records: Iterable[ProcessRecord]) -> tuple[str, ...]:
    """The receipts of these processes, as many as fit into a hello; the controller takes the rest for strays."""
    told: list[str] = []
    left = MAX_RECEIPTS_BYTES
    for receipt in (record.order.receipt for record in records if record.order is not None and record.order.receipt):
        left -= len(receipt)
        if left < 0:
            break
        told.append(receipt)
    return tuple(told)


def name_of(key: ProcessKey) -> str:
    return f"{key.instance}.{key.epoch}.{key.rank}"


_REPORTED: Final = frozenset(ProcessReport.__struct_fields__) & frozenset(ProcessRecord.__struct_fields__)


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process as /proc shows it. `marked` is the key that its environment carries, None if it carries none."""

    pid: int
    group: int
    session: int
    start_ticks: int
    zombie: bool
    marked: ProcessKey | None = None
    parent: int = 0
