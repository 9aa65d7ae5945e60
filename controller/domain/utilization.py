"""How an instance uses its GPUs, and the verdict on it. Times are seconds of the database's clock."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from controller.domain.series import Series

Judgement: TypeAlias = Literal["idle", "busy", "unknown"]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One claimed GPU. `own`: it is shared, so the samples are of the instance's own processes."""

    uuid: str
    worker: str  # its name
    series: Series
    own: bool = False


@dataclass(frozen=True, slots=True)
class RequestsSeen:
    """The most requests that one rank had at once in its newest sampling period; None: unknown."""

    at: float
    period_s: float
    requests: int | None


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """How one epoch of an instance uses its GPUs. `running_since` None: it is not running yet."""

    phase: str
    running_since: float | None
    gpus: tuple[GpuUse, ...]
    requests: tuple[RequestsSeen, ...] = ()  # of each rank


@dataclass(frozen=True, slots=True)
class Verdict:
    """Idle, busy or unknown, with its reason.

    Attributes:
        low_since: since when all known samples are low.
        due_at: when it will be idle if its samples stay low.
    """

    verdict: Judgement
    reason: str
    message: str
    low_since: float | None = None
    due_at: float | None = None
