"""What is known of how an instance uses its GPUs, and what is made of it. Times are seconds of the database's clock."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from controller.domain.series import Series

Judgement: TypeAlias = Literal["idle", "busy", "unknown"]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU that an instance claims. `own`: the samples are of the instance's processes alone, as it is shared."""

    uuid: str
    worker: str  # its name
    series: Series
    own: bool = False


@dataclass(frozen=True, slots=True)
class RequestsSeen:
    """Most requests that one rank had at once in its newest sampling period; None is unknown."""

    at: float
    period_s: float
    requests: int | None


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """How one epoch of an instance uses its GPUs. `running_since` None: it does not run yet."""

    phase: str
    running_since: float | None
    gpus: tuple[GpuUse, ...]
    requests: tuple[RequestsSeen, ...] = ()  # of each rank


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an instance is idle, why, since when all known samples are low, and when it is idle if it goes on so."""

    verdict: Judgement
    reason: str
    message: str
    low_since: float | None = None
    due_at: float | None = None
