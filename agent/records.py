"""What the agent knows of one process: the record that the journal keeps and that reports are made from. Pure data."""

from typing import Literal, NamedTuple

from schemas.base import Wire
from schemas.wire import ExitReason, ProcessReport, ProcessState, StartOrder

RefusalCode = Literal["old_term", "old_epoch", "claim_conflict", "bad_command", "unknown_device", "shutting_down"]


class Key(NamedTuple):
    """Names one process over the agent's life."""

    instance: str
    epoch: int
    rank: int


class StopPlan(Wire):
    """A decided stop: why, and how long it may take in all. Kept in the journal so that a restart carries it on."""

    reason: ExitReason
    drain_time_s: float


class ProcessRecord(Wire):
    """One process. `order` is dropped when it has exited, since its environment may hold secrets.

    `ready_s` is on the agent's clock (seconds since boot), so it holds across the agent's restarts.
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
    pid: int | None = None
    pid_start_ticks: int | None = None
    boot_id: str
    port: int | None = None
    ready: bool = False
    ready_s: float | None = None
    order: StartOrder | None = None
    stop: StopPlan | None = None
    refusal: RefusalCode | None = None  # its start was refused, so it never was and never shall be
    acked: bool = False  # the controller has the exit on its disk; kept as a tombstone only

    @property
    def key(self) -> Key:
        """The process's name."""
        return Key(self.instance, self.epoch, self.rank)

    @property
    def alive(self) -> bool:
        """Whether the process (or anything of its group) may still hold its devices."""
        return self.state != "exited"

    def report(self) -> ProcessReport:
        """The record as the controller is told."""
        return ProcessReport(
            instance=self.instance,
            epoch=self.epoch,
            rank=self.rank,
            seq=self.seq,
            state=self.state,
            reason=self.reason,
            exit_code=self.exit_code,
            message=self.message,
            pid=self.pid,
            ready=self.ready,
        )
