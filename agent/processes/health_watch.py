"""Watches one running process: its probe, until it must be killed, and its log, which is rotated."""

import asyncio
import os
from collections import deque
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

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
from agent.decide.stalls import Evidence, StallLimits, is_stalled, unanswered
from agent.processes.kept_record import KeptRecord
from agent.processes.process_context import ProcessContext
from agent.processes.procfs import oom_kills
from agent.processes.running import Running
from agent.state.process_records import StopPlan
from schemas.wire import NO_ANSWER, ProbeOrder, StartOrder

_ALIVE_AFTER_S: Final = 0.2  # without a port, a process is running after this time
_FIRST_PROBES_S: Final = (0.1, 0.1, 0.1, 0.15, 0.25)  # short at first, so that a fast start is noticed at once
_PORT_PROBE: Final = ProbeOrder(path="", period_s=5.0, timeout_s=2.0, failures=3)  # timing without an ordered probe
_LOG_CHECK_S: Final = 1.0

log = structlog.get_logger()

_CANCEL_LIMIT_S: Final = 1.0
_SAME_S: Final = 0.05  # two ages of one sign differ by the time between two looks at clocks


class StallWatch:
    """An async context: leaving it ends a probe under way."""

    def __init__(self, kept: KeptRecord, order: StartOrder, context: ProcessContext) -> None:
        self._kept = kept
        self._order = order
        self._context = context
        self._limits = StallLimits(order.stalled_requests, order.stalled_after_s)
        self._generate = None if order.probe is None else order.probe.generate
        self._asking: asyncio.Task[bool | None] | None = None
        self._sign_s = context.clock()  # the last sign that it generates
        self._failed = 0  # vain asks in a row
        self._asked_s = 0.0
        self.why = ""  # why the process counts as stalled, as it is reported; empty: it does not
        context.activity.forget(kept.key.instance)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._asking is not None and not self._asking.done():
            self._asking.cancel()
            await asyncio.wait({self._asking}, timeout=_CANCEL_LIMIT_S)

    def look(self) -> bool | None:
        """Whether it is stalled: True, False after a sign that it generates, None without news."""
        evidence, now = self._context.activity.of(self._kept.now), self._context.clock()
        if is_stalled(evidence, self._limits):
            count = len(unanswered(evidence, self._limits))
            self.why = f"{NO_ANSWER}: {count} requests have no answer, and no token came for {self._limits.after_s:g} s"
            return True
        seen = self._note_signs(evidence, now)
        answered = self._take_answer(evidence, now)
        if answered is False:
            return True
        seen = seen or answered is True
        if seen:
            self._failed, self.why = 0, ""
        self._ask(now)
        return False if seen else None

    def _note_signs(self, evidence: Evidence, now: float) -> bool:
        """Whether there is a newer sign than the last one."""
        ages = [age for age in (evidence.answered, evidence.counters_moved) if age is not None]
        newest = now - min(ages, default=float("inf"))
        if newest <= self._sign_s + _SAME_S:
            return False
        self._sign_s = newest
        return True

    def _ask(self, now: float) -> None:
        """Asks for a token where nothing has shown for a while that it generates."""
        generate, port = self._generate, self._kept.now.port
        if generate is None or port is None or self._asking is not None:
            return
        if now - max(self._sign_s, self._asked_s) >= generate.every_s:
            self._asked_s = now
            self._asking = asyncio.create_task(self._one_token(port, generate.timeout_s), name="generate-probe")

    async def _one_token(self, port: int, timeout_s: float) -> bool | None:
        with self._context.activity.probing(self._kept.now):
            return await self._context.prober.generate(port, timeout_s)

    def _take_answer(self, evidence: Evidence, now: float) -> bool | None:
        """What an ask that has ended says: True, it generates; False, the last of its failures in a row; None."""
        asking = self._asking
        if asking is None or not asking.done():
            return None
        self._asking = None
        answered = asking.result()
        if answered:
            self._sign_s = now
            return True
        if answered is None or self._order.probe is None or self._generate is None:
            return None
        took = now - self._asked_s
        if self._sign_s > self._asked_s or (
            any(not wait.ended for wait in evidence.waits) and not _idle_for(evidence, took)
        ):
            return None  # it works on others' requests, or may
        self._failed += 1
        if self._failed <= self._order.probe.failures:
            log.warning("no token in time", instance=self._kept.key.instance, failures=self._failed)
        if self._failed < self._order.probe.failures:
            return None
        self.why = f"{NO_ANSWER}: no token within {self._generate.timeout_s:g} s, {self._failed} times in a row"
        return False


def _idle_for(evidence: Evidence, seconds: float) -> bool:
    return evidence.gpus_idle is not None and evidence.gpus_idle >= seconds


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
