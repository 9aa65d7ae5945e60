"""How an instance uses its GPUs, and the verdict on it. Times are seconds of the database's clock."""

from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from controller.domain.mean_series import MeanSeries
from controller.domain.series import Series

Judgement: TypeAlias = Literal["idle", "busy", "unknown"]


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One claimed GPU.

    Attributes:
        uuid: of the GPU.
        worker: its name.
        series: its samples.
        own: it is shared, so the samples are of the instance's own processes.
        low_after: it was not low all the time before, by samples that are no longer in `series`.
    """

    uuid: str
    worker: str
    series: Series
    own: bool = False
    low_after: float = -inf


@dataclass(frozen=True, slots=True)
class InstanceUse:
    """How one epoch of an instance uses its GPUs.

    Attributes:
        phase: of the instance.
        running_since: None: it is not running yet.
        gpus: its claimed GPUs.
        requests: of each rank that reports any: `high` is the most requests at once, `mean` the number that came.
        mean: the mean of all GPUs, as kept from look to look; None: it is computed anew.
        leapt_s: by how much the database's clock has leapt forward since `running_since`: time that did not pass.
    """

    phase: str
    running_since: float | None
    gpus: tuple[GpuUse, ...]
    requests: tuple[Series, ...] = ()
    mean: MeanSeries | None = None
    leapt_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Idle, busy or unknown, with its reason.

    Attributes:
        low_since: since when everything was read and low; never before the end of a gap.
        due_at: when it will be idle if its samples stay low.
    """

    verdict: Judgement
    reason: str
    message: str
    low_since: float | None = None
    due_at: float | None = None
