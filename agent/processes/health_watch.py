"""Watches one running process: its probe, until it must be killed, and its log, which is rotated."""

import asyncio
import os
from collections import deque
from dataclasses import replace
from typing import Final

import structlog

from agent.decide.health import (
    MOST_START_TIMEOUTS,
    HealthLimits,
    ProcessHealth,
    after_probe,
    after_progress,
    after_stall,
    kill_reason,
    only_logs,
)
from agent.processes.kept_record import KeptRecord
from agent.processes.process_context import ProcessContext
from agent.processes.procfs import oom_kills
from agent.processes.running import Running
from agent.processes.stall_watch import StallWatch
from agent.state.process_records import StopPlan
from schemas.wire import NO_ANSWER, ProbeOrder, StartOrder

_ALIVE_AFTER_S: Final = 0.2  # without a port, a process is running after this time
_FIRST_PROBES_S: Final = (0.1, 0.1, 0.1, 0.15, 0.25)  # short at first, so that a fast start is noticed at once
_PORT_PROBE: Final = ProbeOrder(path="", period_s=5.0, timeout_s=2.0, failures=3)  # timing without an ordered probe
_LOG_CHECK_S: Final = 1.0

log = structlog.get_logger()


async def watch_health(
    kept: KeptRecord, order: StartOrder, context: ProcessContext, group: Running
) -> tuple[StopPlan, str]:
    """Probes until the process must be killed because it does not answer; returns how, and why in words."""
    port, clock = kept.now.port, context.clock
    probe = order.probe or _PORT_PROBE
    limits = HealthLimits(probe.failures, order.start_timeout_s, order.liveness_timeout_s)
    health = _first_health(kept, clock())
    began_s, first_delays = clock(), iter(_FIRST_PROBES_S)
    log_state = context.folders.log_state(kept.key)
    async with StallWatch(kept, order, context) as stalls:
        while True:
            if port is None:
                answered: bool | None = health.ready or clock() - began_s >= _ALIVE_AFTER_S
            else:
                answered = await context.prober.probe(order.probe, port, is_proxied=group.is_proxied)
                if group.is_unknown and not answered:
                    answered = None
            health = _after_look(after_probe(health, limits, answered=answered, now_s=clock()), limits, stalls, clock())
            if not health.ready:
                before, log_state = log_state, context.folders.log_state(kept.key)
                if log_state != before:
                    health = replace(health, progress_s=clock())
            reason = kill_reason(health, limits, clock()) if answered is not None else None
            if reason is not None:
                logs = only_logs(health, limits, clock())
                return StopPlan(reason=reason, drain_time_s=0.0), _kill_message(reason, order, stalls.why, logs=logs)
            _report(kept, health, clock(), stalls.why if health.stalled else "")
            await asyncio.sleep(probe.period_s if health.ready else next(first_delays, _FIRST_PROBES_S[-1]))


def _after_look(health: ProcessHealth, limits: HealthLimits, stalls: StallWatch, now_s: float) -> ProcessHealth:
    """The health after a look at whether it generates. What still starts is not expected to."""
    stalled = stalls.look() if health.ready else None
    if stalled is None:
        return health
    return after_stall(health, now_s=now_s) if stalled else after_progress(health, limits)


async def rotate_log(kept: KeptRecord, context: ProcessContext, kills: deque[int]) -> None:
    """Notes when the log grows, rotates it, and notes the kernel's kills for want of memory. Never returns."""
    index = await asyncio.to_thread(context.folders.index, kept.key)
    await asyncio.to_thread(index.look)  # at once: until now perhaps nothing looked
    while True:
        await asyncio.sleep(_LOG_CHECK_S)
        kills.append(oom_kills())
        try:
            await asyncio.to_thread(index.look)
            await asyncio.to_thread(context.folders.rotate_log, kept.key)
        except OSError as error:  # the engine keeps running on a full disk
            log.warning("log not rotated", instance=kept.key.instance, error=str(error))


def _kill_message(reason: str, order: StartOrder, why: str, *, logs: bool) -> str:
    if reason == "start_timeout" and logs:
        limit_s = MOST_START_TIMEOUTS * order.start_timeout_s
        return f"no answer to its probe for {limit_s:g} s, {MOST_START_TIMEOUTS} times its start timeout"
    if reason == "start_timeout":
        return f"no answer to its probe, and nothing logged for {order.start_timeout_s:g} s"
    return f"unhealthy for {order.liveness_timeout_s:g} s" + (f" ({why})" if why else "")


def _first_health(kept: KeptRecord, now_s: float) -> ProcessHealth:
    state = kept.now.state if kept.now.state in ("running", "unhealthy") else "starting"
    since = now_s if state == "unhealthy" else None
    return ProcessHealth(
        state=state, progress_s=now_s, ready=kept.now.ready, unhealthy_s=since, spawned_s=_spawned_s(kept, now_s)
    )


def _spawned_s(kept: KeptRecord, now_s: float) -> float:
    """When its process began, by the agent's clock, which counts from the boot as /proc does. Not after now."""
    ticks = kept.now.pid_start_ticks
    return now_s if ticks is None else min(now_s, ticks / os.sysconf("SC_CLK_TCK"))


def _report(kept: KeptRecord, health: ProcessHealth, now_s: float, why: str) -> None:
    if (health.state, health.ready) == (kept.now.state, kept.now.ready):
        return
    first = health.ready and not kept.now.ready
    said = {"message": why} if why or kept.now.message.startswith(f"{NO_ANSWER}:") else {}
    kept.write(state=health.state, ready=health.ready, ready_s=now_s if first else kept.now.ready_s, **said)
