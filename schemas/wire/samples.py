"""Samples of GPUs and processes, and their acknowledgement."""

from typing import Annotated, Final

from msgspec import Meta

from schemas.wire.base import (
    MAX_GPUS,
    MAX_PERIODS,
    MAX_PROCESSES,
    AgentSeconds,
    BigInt,
    GpuUuid,
    Int,
    Mib,
    Percent,
    Since,
    Wire,
    WireName,
)

SAMPLE_S: Final = 10.0
_LONGEST_S: Final = 180.0  # a period of 120 s may end late, but no reading continues for 60 s without a stop


class Readings(Wire, frozen=True, kw_only=True):
    """Mean and maximum, in percent, of the readings of one sampling period."""

    mean: Percent
    max: Percent


class GpuSample(Readings, frozen=True, kw_only=True):
    """One GPU over one sampling period. A GPU that could not be read in the period has no sample."""

    uuid: GpuUuid
    used_mib: Mib | None = None


class ProcessSample(Wire, frozen=True, kw_only=True):
    """One process over one sampling period. The key is (instance, epoch, rank). None: unknown."""

    instance: WireName
    epoch: Int
    rank: Int = 0
    # by the UUID of each claimed GPU, of this process's tree alone
    utilization: Annotated[dict[GpuUuid, Readings | None], Meta(max_length=MAX_GPUS)] = {}
    requests: Int | None = None  # the most in flight or waiting at once
    arrived: Annotated[Int | None, Since(4)] = None  # number of new requests
    queued: Annotated[Int | None, Since(4)] = None  # requests in the engine's own queue at the last poll
    kv_use: Annotated[Annotated[float, Meta(ge=0, le=1)] | None, Since(4)] = None  # of its KV cache, at the last poll


class SamplePeriod(Wire, frozen=True, kw_only=True):
    """The samples of one sampling period, or of a part of it: it is cut if reading stopped for more than 2 s."""

    seq: BigInt  # rises over the agent's life between two boots of its host
    sampled_s: AgentSeconds  # the last reading, on the agent's monotonic clock (seconds since the host's boot)
    period_s: Annotated[float, Meta(ge=0.5, le=120)]
    # seconds that were really read, up to `sampled_s`; None: all of the period, from an older agent
    read_s: Annotated[Annotated[float, Meta(ge=0, le=_LONGEST_S)] | None, Since(4)] = None
    impossible: Annotated[Int, Since(4)] = 0  # readings left out since no GPU or engine can have them
    gpus: Annotated[tuple[GpuSample, ...], Meta(max_length=MAX_GPUS)]
    processes: Annotated[tuple[ProcessSample, ...], Meta(max_length=MAX_PROCESSES)] = ()


class Samples(Wire, frozen=True, kw_only=True, tag="samples"):
    """Sampling periods that the controller has not acknowledged, oldest first.

    A sample's time is the time of receipt less (`sent_s` - `sampled_s`). The hosts' wall clocks are never used.
    """

    sent_s: AgentSeconds
    periods: Annotated[tuple[SamplePeriod, ...], Meta(max_length=MAX_PERIODS)]


class SamplesAck(Wire, frozen=True, kw_only=True, tag="samples_ack"):
    """Sampling periods up to `seq` are durable; the agent may drop them."""

    seq: int
