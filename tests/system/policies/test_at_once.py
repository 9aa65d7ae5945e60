"""All cases of policies at once on real processes: only idle instances are stopped."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from support.processes.cluster import Cluster
from support.processes.policies import IDLE_POLICY, SAMPLE_S, SAMPLING, WHOLE, WINDOW_S, PolicyWatch, Serving, seconds
from support.standins.webhook_receiver import Receiver, webhook_receiver

pytestmark = pytest.mark.cases

log = logging.getLogger(__name__)
PROMISED_S = SAMPLE_S + 2.0  # one sampling period and two seconds after the window is full
SAVES_S = 8
LOADS_S = 40
MUTE_AFTER_S = 20
KEY = "a key of the test's own"
# Busy for so long after its start that a second replica, started later, is busy when this one has become idle.
FALLS_IDLE = [[10, 95], [3600, 0]]
SECOND_AFTER_S = 15
# On SIGTERM it saves its work and reports that in a file.
SAVING = f"""
import signal, sys, time
def save(*_):
    time.sleep({SAVES_S})
    open(sys.argv[1], "w").write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
while True:
    time.sleep(1)
"""


async def test_only_what_is_idle_is_stopped(cluster: Cluster, watch: PolicyWatch) -> None:
    async with webhook_receiver([500]) as receiver:
        await _begin(watch, receiver)
        async with _asked_for_long(cluster, "asked"):
            served = {name: (await watch.serving(name))[0] for name in EARLY}
            await _change_in_mid_window(watch, served)
            await _idle_ones_are_stopped(watch, served)
            await _notified_only(watch, served, receiver)
            await _others_say_why(watch, served)
            await _stays_stopped_until_started(watch)
            await _default_changed_and_deleted(watch, served)
            await _one_of_two(watch, served)
            await _saved_before_it_ended(watch)
            await _ran_on(watch, served, receiver)


EARLY = (
    "unused", "busy", "unheard", "asked", "pair", "shrink", "notified", "rehearsed", "saves", "changed", "middling",
    "quiet", "loud",
)  # fmt: skip
RUN_ON = ("busy", "loading", "unheard", "asked", "pair", "late", "loud")


async def _begin(watch: PolicyWatch, receiver: Receiver) -> None:
    cluster = watch.cluster
    cluster.use_rig()  # for an answer that takes long
    await cluster.start_controller(**SAMPLING, GPUWARD_WEBHOOKS_MAY_REACH="127.0.0.1/32")
    await cluster.start_agent("host", gpus=16)
    await cluster.start_agent("mute", gpus=1, host={"telemetry_seconds": MUTE_AFTER_S})
    assert (await cluster.call("PUT", "/secrets/webhook", {"value": KEY}))[0] in (200, 201, 204)
    await watch.put("stop-idle", default=True, **IDLE_POLICY)
    await watch.put("by-name", **IDLE_POLICY)

    await watch.idle("unheard", placement={"workers": ["mute"]})
    await cluster.until(lambda: watch.placed("unheard"), "unheard is placed, before others may take its only GPU")
    await watch.idle("unused")
    await watch.idle("busy", 95)
    await watch.idle("loading", 95, args={"load_seconds": LOADS_S})
    await watch.idle("asked", args={"token_seconds": 1})
    await watch.idle("pair", FALLS_IDLE, utilization_policy="by-name")
    await watch.idle("shrink", FALLS_IDLE, utilization_policy={**IDLE_POLICY, "action": "scale_down"})
    await watch.idle("notified", utilization_policy={**IDLE_POLICY, "action": "notify", "webhook": receiver.url})
    await watch.idle("rehearsed", utilization_policy={**IDLE_POLICY, "dry_run": True})
    await watch.idle("changed", utilization_policy={**IDLE_POLICY, "time_window": 3600})
    await watch.idle("middling", 60)
    saving = [sys.executable, "-c", SAVING, str(_saved(watch))]
    await cluster.apply("saves", engine="custom", command=saving, resources=WHOLE, drain_time="20s")
    shared = {"resources": {"gpus": 1, "gpu_memory": "8GiB"}, "placement": {"gpus": ["host:15"]}}
    await watch.idle("quiet", **shared)
    await watch.idle("loud", 95, **shared)


async def _change_in_mid_window(watch: PolicyWatch, served: dict[str, Serving]) -> None:
    """Another window in place (U42), a second replica for some, and a late deployment."""
    await watch.pass_until(served["pair"].since + seconds(SECOND_AFTER_S))
    for name in ("pair", "shrink"):
        await watch.cluster.post(f"/deployments/{name}/scale", {"replicas": 2})
    await watch.idle("changed", utilization_policy=IDLE_POLICY)
    event = await watch.only_event("policy_changed", "changed")
    assert event["evidence"]["old"]["time_window"] == 3600, event
    assert event["evidence"]["new"]["time_window"] == WINDOW_S, event
    assert await watch.now() < served["changed"].full_at()
    await watch.idle("late")


async def _idle_ones_are_stopped(watch: PolicyWatch, served: dict[str, Serving]) -> None:
    for name in ("unused", "changed", "saves", "quiet"):
        event = await watch.only_event("policy_stop", name)
        await watch.check_not_early(event, [served[name]])
        watch.check_evidence(event, [served[name]], "host")
        late_s = (event["at"] - served[name].full_at()).total_seconds()
        log.info("%s: stopped %.2f s after its window was full", name, late_s)
        assert name != "unused" or late_s <= PROMISED_S
        assert (event["evidence"]["policy"] == "stop-idle") == (name != "changed")


async def _notified_only(watch: PolicyWatch, served: dict[str, Serving], receiver: Receiver) -> None:
    event = await watch.only_event("policy_notify", "notified")
    await watch.check_not_early(event, [served["notified"]])
    event = await watch.only_event("policy_would_stop", "rehearsed")
    await watch.check_not_early(event, [served["rehearsed"]])
    await watch.cluster.until(lambda: len(receiver.received) >= 2, "the webhook is sent again")
    first, again = receiver.received
    assert first.id == again.id
    assert first.signed_with(KEY.encode())
    assert again.signed_with(KEY.encode())
    assert not again.signed_with(b"another key")
    assert first.content == again.content


async def _others_say_why(watch: PolicyWatch, served: dict[str, Serving]) -> None:
    wanted = {
        "busy": ("false", {"busy"}),
        "loading": ("unknown", {"not_running"}),
        "unheard": ("unknown", {"coverage", "no_telemetry", "window_not_full"}),
        "asked": ("false", {"requests"}),
        "middling": ("false", {"busy"}),
        "loud": ("false", {"busy"}),
        "late": ("unknown", {"window_not_full"}),
    }
    for name, (status, reasons) in wanted.items():
        condition = await watch.condition(name)
        assert (condition["status"], condition["reason"] in reasons) == (status, True), (name, condition)
        assert condition["message"], name
    assert (await watch.cluster.instances("loud"))[0]["status"]["gpus"] == list(served["quiet"].gpus)


async def _stays_stopped_until_started(watch: PolicyWatch) -> None:
    """Neither `restart: always` nor an unchanged apply starts what a policy stopped; `start` does (U33)."""
    cluster = watch.cluster
    await cluster.until(lambda: cluster.phase_is("unused", "stopped"), "unused is stopped")
    await watch.idle("unused")
    status = (await watch.deployment("unused"))["status"]
    assert (status["phase"], status["reason"], status["wanted"]) == ("stopped", "policy_idle", 0)
    assert not await cluster.instances("unused")
    await cluster.post("/deployments/unused/start")
    await cluster.running("unused")
    assert len(await watch.events("policy_stop", "unused")) == 1


async def _default_changed_and_deleted(watch: PolicyWatch, served: dict[str, Serving]) -> None:
    """A change applies to running instances, and so does the policy's deletion (U43)."""
    await watch.put("stop-idle", default=True, **{**IDLE_POLICY, "min_gpu_utilization": 80})
    event = await watch.only_event("policy_stop", "middling")
    assert event["evidence"]["min_gpu_utilization"] == 80
    await watch.check_not_early(event, [served["middling"]])
    assert len(await watch.verdicts("late")) == 1
    await watch.delete("stop-idle")

    async def judged_no_more() -> bool:
        return not any([await watch.verdicts(name) or await watch.condition(name) for name in ("late", "busy")])

    await watch.cluster.until(judged_no_more, "no policy applies to them", 5)


async def _one_of_two(watch: PolicyWatch, served: dict[str, Serving]) -> None:
    """`scale_down` stops only the idle replica, `stop` none (U32)."""
    first, second = await watch.serving("pair", 2)

    async def one_is_idle() -> bool:
        verdicts = await watch.verdicts("pair")
        return [verdicts[one.name]["verdict"] for one in (first, second)] == ["idle", "busy"]

    await watch.cluster.until(one_is_idle, "one of the pair is idle", 20)
    condition = await watch.condition("pair")
    assert condition["status"] == "false", condition
    assert condition["message"], condition

    event = await watch.only_event("policy_scale_down", "shrink", 10)
    victim = served["shrink"]
    assert event["evidence"]["instances"] == [victim.name]
    await watch.check_not_early(event, [victim])
    watch.check_evidence(event, [victim], "host")
    (left,) = await watch.serving("shrink", 1)
    assert left.name != victim.name
    assert len(await watch.serving("pair", 2)) == 2


def _saved(watch: PolicyWatch) -> Path:
    return watch.cluster.folder / "saved"


async def _saved_before_it_ended(watch: PolicyWatch) -> None:
    """A policy's stop honours the drain time (U35)."""
    await watch.cluster.until(lambda: watch.cluster.phase_is("saves", "stopped"), "it has saved and ended", SAVES_S + 5)
    assert _saved(watch).read_text() == "saved"
    (event,) = await watch.events("policy_stop", "saves")
    assert _saved(watch).stat().st_mtime >= event["at"].timestamp() + SAVES_S


async def _ran_on(watch: PolicyWatch, served: dict[str, Serving], receiver: Receiver) -> None:
    """Nothing else was done, and each action was done once."""
    await watch.cluster.running("loading", LOADS_S)
    (late,) = await watch.serving("late")
    await watch.pass_until(late.full_at() + seconds(PROMISED_S + 1))
    await watch.untouched(RUN_ON)
    now = {
        name: (await watch.serving(name))[0] for name in ("busy", "unheard", "asked", "loud", "notified", "rehearsed")
    }
    assert now == {name: served[name] for name in now}
    for reason, name in (("policy_notify", "notified"), ("policy_would_stop", "rehearsed")):
        assert len(await watch.events(reason, name)) == 1
    assert len(receiver.received) == 2
    assert (await watch.condition("notified"))["status"] == "true"
    await watch.cluster.audit()


@asynccontextmanager
async def _asked_for_long(cluster: Cluster, name: str) -> AsyncIterator[None]:
    """A streamed request, one token a second, while the context lasts."""
    await cluster.running(name)
    body = {"model": name, "prompt": "on and on", "max_tokens": 600, "stream": True}
    begun = asyncio.Event()

    async def ask() -> None:
        limit = aiohttp.ClientTimeout(total=600)
        async with cluster.session.post("/v1/completions", json=body, timeout=limit) as answer:
            assert answer.status == 200
            async for _ in answer.content:
                begun.set()

    asking = asyncio.create_task(ask(), name="asking")
    try:
        async with asyncio.timeout(20):
            await begun.wait()
        yield
        assert not asking.done(), "the request was to last for the whole test"
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
