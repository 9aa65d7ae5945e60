"""The past of instances: their claims, and the minutes of the GPUs that they claimed."""

from dataclasses import dataclass
from typing import Final, NamedTuple

MINUTE_S: Final = 60.0


class Track(NamedTuple):
    """A GPU. `own`: the instance shares it, so the figures are of the instance's processes alone."""

    device: str
    own: bool


class Minute(NamedTuple):
    """One minute of a track. `at`: its end in seconds; utilization in percent."""

    at: float
    mean: float
    high: float
    covered_s: float


@dataclass(frozen=True, slots=True)
class PastClaim:
    """A claim on a GPU. Times in seconds. `running_since` None: that epoch never ran, as far as is known."""

    track: Track
    worker: str
    epoch: int
    share: float  # of the GPU
    began: float
    ended: float
    running_since: float | None
    model: str = ""  # of the GPU
