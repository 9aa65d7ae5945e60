"""Samples of GPUs and processes, and their acknowledgement."""

from typing import Annotated, Final, Literal, TypeVar

from pydantic import FailFast

from schemas.wire.base import Since, Wire

SAMPLE_S: Final = 10.0
_Item = TypeVar("_Item")
_All = Annotated[tuple[_Item, ...], FailFast()]  # the first error is all that is told, so no other is looked for


class Readings(Wire):
    """Mean and maximum, in percent, of the readings of one sampling period."""

    mean: float
    max: float


class GpuSample(Readings):
    """One GPU over one sampling period. A GPU that could not be read in the period has no sample."""

    uuid: str
    used_mib: int | None = None


class ProcessSample(Wire):
    """One process over one sampling period. The key is (instance, epoch, rank).

    Attributes:
        utilization: by the UUID of each claimed GPU, of this process's tree alone; None: unknown.
        requests: the most requests in flight or waiting at once; None: unknown.
        arrived: the number of requests that came in; None: unknown.
        queued: requests in the engine's own queue at the last look; None: unknown.
        kv_use: the share of the engine's KV cache in use at the last look, 0 to 1; None: unknown.
    """

    instance: str
    epoch: int
    rank: int = 0
    utilization: dict[str, Readings | None] = {}
    requests: int | None = None
    arrived: Annotated[int | None, Since(4)] = None
    queued: Annotated[int | None, Since(4)] = None
    kv_use: Annotated[float | None, Since(4)] = None


class SamplePeriod(Wire):
    """The samples of one sampling period, or of a piece of it: it is cut where reading stopped for more than 2 s.

    Attributes:
        seq: rises over the agent's life between two boots of its host.
        sampled_s: the last reading, on the agent's monotonic clock (seconds since the host's boot).
        period_s: length of a sampling period.
        read_s: seconds that were really read, up to `sampled_s`: all that the samples speak for. None: the whole
            period, from an agent that does not say.
        impossible: readings that were left out because no GPU or engine can have them.
    """

    seq: int
    sampled_s: float
    period_s: float
    read_s: Annotated[float | None, Since(4)] = None
    impossible: Annotated[int, Since(4)] = 0
    gpus: _All[GpuSample]
    processes: _All[ProcessSample] = ()


class Samples(Wire):
    """Sampling periods that the controller has not acknowledged, oldest first.

    A sample's time is the time of receipt less (`sent_s` - `sampled_s`). The hosts' wall clocks are never used.
    """

    type: Literal["samples"] = "samples"
    sent_s: float
    periods: _All[SamplePeriod]


class SamplesAck(Wire):
    """Sampling periods up to `seq` are durable; the agent may drop them."""

    type: Literal["samples_ack"] = "samples_ack"
    seq: int
