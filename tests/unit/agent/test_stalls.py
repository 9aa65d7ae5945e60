"""An engine is stalled only on sound evidence; what is slow, busy or unknown is not."""

from dataclasses import replace

import msgspec
import pytest

from agent.decide.health import HealthLimits, ProcessHealth, after_probe, after_progress, after_stall, kill_reason
from agent.decide.stalls import Evidence, StallLimits, Wait, is_stalled, unanswered
from agent.host_inventory.inventory import IdleGpus
from schemas.wire import ReportedGpu

LIMITS = StallLimits(requests=3, after_s=120.0)
WAITING = (Wait(130.0), Wait(140.0), Wait(150.0))
HUNG = Evidence(waits=WAITING, answered=None, counters_still=200.0, gpus_idle=200.0)


@pytest.mark.parametrize(
    ("evidence", "stalled"),
    [
        pytest.param(HUNG, True, id="three requests wait, nothing moves"),
        pytest.param(replace(HUNG, answered=160.0), True, id="it answered before them"),
        pytest.param(replace(HUNG, waits=WAITING[:2]), False, id="too few requests"),
        pytest.param(replace(HUNG, counters_still=3.0), False, id="full batch, slow: tokens come, no answer yet"),
        pytest.param(replace(HUNG, gpus_idle=0.5), False, id="long prefill: no token yet, the GPU works"),
        pytest.param(replace(HUNG, counters_still=None), False, id="an engine that counts no tokens"),
        pytest.param(replace(HUNG, gpus_idle=None), False, id="unknown GPUs"),
        pytest.param(replace(HUNG, answered=2.0), False, id="long streams go on"),
        pytest.param(replace(HUNG, waits=(Wait(20.0),) * 5), False, id="all have only just come"),
        pytest.param(replace(HUNG, waits=(Wait(130.0), *(Wait(30.0),) * 2)), True, id="a quarter of the time counts"),
        pytest.param(replace(HUNG, waits=(Wait(130.0), *(Wait(29.9),) * 2)), False, id="others have only just come"),
        pytest.param(replace(HUNG, waits=(Wait(120.0),) * 3), True, id="just long enough"),
        pytest.param(replace(HUNG, counters_still=120.0, gpus_idle=120.0), True, id="still just long enough"),
        pytest.param(replace(HUNG, waits=(Wait(190, 60), Wait(180, 50), Wait(170, 1))), False, id="none waits now"),
        pytest.param(replace(HUNG, waits=(Wait(190, 60), Wait(180, 50), Wait(170))), True, id="one waits still"),
        pytest.param(replace(HUNG, waits=()), False, id="idle"),
        pytest.param(
            replace(HUNG, waits=tuple(Wait(age + 40, age) for age in (250.0, 200.0, 150.0))), False,
            id="given up long ago, none waits now: it may be fine again",
        ),
        pytest.param(
            replace(HUNG, waits=(Wait(160, 120), Wait(120, 80), Wait(80, 40), Wait(40))), True,
            id="callers give up one after the other, and one waits now",
        ),
        pytest.param(
            replace(HUNG, waits=(Wait(900, 860), Wait(600, 560), Wait(30))), False,
            id="few requests over a long time: one waited for 110 s in all",
        ),
        pytest.param(
            replace(HUNG, waits=(*(Wait(age, age - 1) for age in range(50, 150)), Wait(40))), False,
            id="users who stop at once say nothing",
        ),
    ],
)  # fmt: skip
def test_what_counts_as_stalled(evidence: Evidence, stalled: bool) -> None:
    assert is_stalled(evidence, LIMITS) is stalled
    assert not is_stalled(evidence, StallLimits(requests=0, after_s=120.0))


def test_a_wait_counts_from_the_last_sign() -> None:
    hung_in_a_batch = replace(HUNG, waits=(Wait(500.0),) * 3, answered=119.0)
    assert [wait.started for wait in unanswered(hung_in_a_batch, LIMITS)] == [119.0] * 3
    assert not is_stalled(hung_in_a_batch, LIMITS)
    assert is_stalled(replace(hung_in_a_batch, answered=121.0), LIMITS)


def test_only_a_sign_ends_a_stall() -> None:
    limits = HealthLimits(failures=3, start_timeout_s=10.0, liveness_timeout_s=60.0)
    starting = ProcessHealth(state="starting", progress_s=0.0)
    assert after_stall(starting, now_s=5.0) == starting
    running = after_probe(starting, limits, answered=True, now_s=1.0)
    stalled = after_stall(running, now_s=5.0)
    assert (stalled.state, stalled.unhealthy_s) == ("unhealthy", 5.0)
    probed = after_stall(after_probe(stalled, limits, answered=True, now_s=50.0), now_s=50.0)
    assert (probed.state, probed.unhealthy_s) == ("unhealthy", 5.0), "its port answers all the time"
    assert kill_reason(probed, limits, 65.1) == "liveness"
    assert after_progress(probed, limits).state == "running"
    deaf = stalled
    for second in range(3):
        deaf = after_probe(deaf, limits, answered=False, now_s=10.0 + second)
    assert after_progress(deaf, limits).state == "unhealthy", "its probe fails, too"


def test_a_gpu_is_idle_only_while_it_is_seen() -> None:
    now = 100.0
    idle = IdleGpus(lambda: now)
    gpu = ReportedGpu(uuid="GPU-1", index=0, model="H100", memory_mib=1, utilization=0.0)
    assert idle.seconds("GPU-1") is None
    for now in range(100, 131):  # noqa: B007 - the clock
        idle.note([gpu])
    assert idle.seconds("GPU-1") == 30.0
    idle.note([msgspec.structs.replace(gpu, utilization=50.0)])
    assert idle.seconds("GPU-1") == 0.0
    now = 133.0
    idle.note([gpu])
    assert idle.seconds("GPU-1") == 3.0
    now = 140.0
    assert idle.seconds("GPU-1") is None, "it was not read for a while"
    idle.note([gpu])
    assert idle.seconds("GPU-1") == 0.0, "it may have worked meanwhile"
    idle.note([msgspec.structs.replace(gpu, utilization=None)])
    assert idle.seconds("GPU-1") is None
