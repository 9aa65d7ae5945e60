"""A replay in parts and by columns finds what a judgement of each minute, one after the other, finds."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.decide.policies.idle_verdict import judge
from controller.decide.policies.replay import Replay, reach_s
from controller.domain.telemetry.history import MINUTE_S, Minutes, PastClaim, Track
from controller.domain.telemetry.series import Series
from controller.domain.telemetry.utilization import GpuUse, InstanceUse
from schemas.manifest.policy import UtilizationPolicy

START: Final = 1_700_000_040.0  # a full minute
LONG: Final = 90  # minutes


def first_idle(
    claims: Sequence[PastClaim], minutes: Mapping[Track, Minutes], policy: UtilizationPolicy, since: float
) -> float | None:
    """Each minute of one epoch is put and judged."""
    started = claims[0].running_since
    if started is None:
        return None
    ended = min(claim.ended for claim in claims)
    gpus = tuple(GpuUse(c.track.device, c.worker, Series(), own=c.track.own) for c in claims)
    use = InstanceUse(phase="running", running_since=started, gpus=gpus)
    for now in sorted({at for claim in claims for at in minutes[claim.track].at.tolist()}):
        if now - MINUTE_S < started or now > ended:
            continue
        for claim, gpu in zip(claims, gpus, strict=True):
            at, high, covered_s = minutes[claim.track]
            for k in np.flatnonzero(at == now):
                gpu.series.put(now, MINUTE_S, float(high[k]), float(high[k]), float(covered_s[k]))
        if now >= since and judge(policy, use, now).verdict == "idle":
            return float(now)
    return None


def freed_s(
    epochs: Sequence[Sequence[PastClaim]], minutes: Mapping[Track, Minutes], policy: UtilizationPolicy, since: float
) -> float:
    """Of epochs that follow one another without a gap."""
    policy = policy.model_copy(update={"ignore_requests": True})
    found = [at for epoch in epochs if (at := first_idle(epoch, minutes, policy, since)) is not None]
    claims = [claim for epoch in epochs for claim in epoch]
    return sum(c.share * max(0.0, c.ended - max(c.started, found[0])) for c in claims) if found else 0.0


@st.composite
def tracks_minutes(draw: st.DrawFn) -> Minutes:
    """Stretches of minutes: low, high, in turns, missing, or covered in part."""
    rows: list[tuple[float, float, float]] = []
    n = 0
    while n < LONG:
        kind = draw(st.sampled_from(["low", "low", "high", "turns", "missing", "part"]))
        for k in range(n, min(n + draw(st.integers(1, 30)), LONG)):
            high = {"high": 80.0, "turns": 80.0 * (k % 2)}.get(kind, 3.0)
            if kind != "missing":
                rows.append((START + (k + 1) * MINUTE_S, high, draw(st.integers(30, 60)) if kind == "part" else 60.0))
            n = k + 1
    columns = np.array(rows, dtype=np.float64).reshape(-1, 3)
    return Minutes(columns[:, 0], columns[:, 1].astype(np.float32), columns[:, 2].astype(np.float32))


@st.composite
def pasts(draw: st.DrawFn) -> tuple[list[list[PastClaim]], dict[Track, Minutes]]:
    """One to three GPUs, whole or shared, in one to three epochs, some of which never ran."""
    tracks = [Track(f"g{n}", own=draw(st.booleans())) for n in range(draw(st.integers(1, 3)))]
    end = START + LONG * MINUTE_S
    inner = draw(st.lists(st.integers(60, int(end - START) - 60), max_size=2, unique=True))
    bounds = [START - draw(st.integers(0, 90)), *(START + s for s in sorted(inner)), end]
    epochs = []
    for number, (begin, until) in enumerate(pairwise(bounds), 1):
        running = begin + draw(st.integers(0, 120)) if draw(st.integers(0, 5)) else None
        epochs.append([PastClaim(t, "w", number, 0.5 if t.own else 1.0, begin, until, running, "m") for t in tracks])
    return epochs, {track: draw(tracks_minutes()) for track in tracks}


@pytest.mark.parametrize("gpus", ["all", "any", "mean"])
@given(pasts(), st.sampled_from([60, 300, 600, 1530]), st.sampled_from([0.5, 0.8, 1.0]), st.integers(0, 900),
       st.integers(0, LONG * 30), st.lists(st.integers(1, LONG - 1), max_size=4, unique=True))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_parts_and_columns_change_no_result(
    gpus: str,
    past: tuple[list[list[PastClaim]], dict[Track, Minutes]],
    window_s: int,
    coverage: float,
    grace_s: int,
    since_s: int,
    cuts: list[int],
) -> None:
    epochs, minutes = past
    policy = UtilizationPolicy.model_validate(
        {"min_gpu_utilization": 30, "time_window": window_s, "gpus": gpus, "min_coverage": coverage,
         "grace_period": grace_s}
    )  # fmt: skip
    since, end = START + since_s, START + LONG * MINUTE_S
    replay = Replay([claim for epoch in epochs for claim in epoch], policy)
    parts = [since, *(at for at in (START + n * MINUTE_S for n in sorted(cuts)) if at > since), end]
    for begin, until in pairwise(parts):
        read = {track: minutes[track].between(begin - reach_s(policy), until) for track in replay.tracks(begin, until)}
        replay.look(read, begin, until)
    assert sum(replay.freed_gpu_s().values()) == pytest.approx(freed_s(epochs, minutes, policy, since))


def test_nothing_more_is_read_of_what_is_decided() -> None:
    track = Track("g", own=False)
    at = START + MINUTE_S * np.arange(1, LONG + 1)
    minutes = {track: Minutes(at, np.zeros(LONG, np.float32), np.full(LONG, 60, np.float32))}
    end = START + LONG * MINUTE_S
    replay = Replay(
        [PastClaim(track, "w", 1, 1.0, START, end, START, "m")],
        UtilizationPolicy(min_gpu_utilization=30, time_window=600),
    )
    assert replay.tracks(START, START + 1200) == {track}
    replay.look(minutes, START, START + 1200)
    assert replay.tracks(START + 1200, end) == set()
    assert replay.freed_gpu_s() == {"m": LONG * MINUTE_S - 600}
