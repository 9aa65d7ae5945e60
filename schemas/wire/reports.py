"""Reports of processes, and their acknowledgement."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from msgspec import Meta

from schemas.wire.base import BigInt, Int, LongText, Since, Wire, WireName

ProcessState = Literal["starting", "running", "unhealthy", "stopping", "exited"]
GPU_MEMORY_HELD: Final = "gpu_memory_held"  # and a colon: in the message of an exit after which memory is not back
NO_ANSWER: Final = "no_answer"  # and a colon: in the message of an unhealthy process that generates nothing
_MAX_MODELS: Final = 128  # of a process: its model, its draft model, its adapters
ExitReason = Literal[
    "exit",  # it exited by itself
    "stopped",  # a stop command
    "spawn_failed",  # it could not be started
    "start_timeout",  # no progress for the start timeout
    "liveness",  # it stopped answering its probe
    "agent_stopped",  # the agent was shut down cleanly, and its engines with it
    "disconnected",  # stop_on_disconnect_after
    "gone",  # unknown to the agent: it never started on the host, or ended before the agent could watch it
]


class ProcessReport(Wire, frozen=True, kw_only=True, tag="process"):
    """The state of one process. The key is (instance, epoch, rank)."""

    instance: WireName
    epoch: Int
    rank: Int = 0
    seq: BigInt
    state: ProcessState
    reason: ExitReason | None = None
    # Negative: killed by that signal, as in Python's subprocess.
    exit_code: Annotated[int, Meta(ge=1 - 2**31, le=2**31 - 1)] | None = None
    message: LongText = ""
    pid: Int | None = None
    ready: bool = False  # the probe was answered at least once
    # Of the image of its container, such as sha256:1f2e, and the repository of the digest.
    image_digest: Annotated[WireName | None, Since(4)] = None
    image_repository: Annotated[WireName | None, Since(4)] = None
    # Of its models of the hub, by `org/name@revision` as ordered.
    model_commits: Annotated[Mapping[WireName, WireName], Meta(max_length=_MAX_MODELS), Since(5)] = {}
    # The part of an exit's message that is a line of its log, which a viewer may not read; None: an older agent.
    log_line: Annotated[LongText | None, Since(4)] = None


class ReportAck(Wire, frozen=True, kw_only=True, tag="report_ack"):
    """Process reports up to `seq` are durable; the agent may forget exited processes among them."""

    seq: int
