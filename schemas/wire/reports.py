"""Reports of processes, and their acknowledgement."""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from schemas.wire.base import Since, Wire

ProcessState = Literal["starting", "running", "unhealthy", "stopping", "exited"]
GPU_MEMORY_HELD: Final = "gpu_memory_held"  # and a colon: in the message of an exit after which memory is not back
NO_ANSWER: Final = "no_answer"  # and a colon: in the message of an unhealthy process that generates nothing
ExitReason = Literal[
    "exit",  # it exited by itself
    "stopped",  # a stop command
    "spawn_failed",  # it could not be started
    "start_timeout",  # no progress for the start timeout
    "liveness",  # it stopped answering its probe
    "agent_stopped",  # the agent was shut down cleanly, and its engines with it
    "disconnected",  # stop_on_disconnect_after
    "gone",  # the agent knows no such process: it never started on the host, or died before the agent could watch it
]


class ProcessReport(Wire):
    """The state of one process. The key is (instance, epoch, rank)."""

    type: Literal["process"] = "process"
    instance: str
    epoch: int
    rank: int = 0
    seq: int
    state: ProcessState
    reason: ExitReason | None = None
    exit_code: int | None = None  # negative: killed by that signal, as in Python's subprocess
    message: str = ""
    pid: int | None = None
    ready: bool = False  # the probe was answered at least once
    image_digest: Annotated[str | None, Since(4)] = None  # of the image that its container runs, such as sha256:1f2e
    image_repository: Annotated[str | None, Since(4)] = None  # that the digest is of
    # Of the models of the hub that it was given, by `org/name@revision` as ordered.
    model_commits: Annotated[Mapping[str, str], Since(5)] = {}
    # The part of an exit's message that is a line of its log, which a viewer may not read; None: an older agent.
    log_line: Annotated[str | None, Since(4)] = None


class ReportAck(Wire):
    """Process reports up to `seq` are durable; the agent may forget exited processes among them."""

    type: Literal["report_ack"] = "report_ack"
    seq: int
