"""Watches one running process: probes, generated tokens, and its log."""

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

_ALIVE_AFTER_S: Final = 0.2  # a process without a port counts as running after this time
_FIRST_PROBES_S: Final = (0.1, 0.1, 0.1, 0.15, 0.25)  # short at first, to notice a fast start
_PORT_PROBE: Final = ProbeOrder(path="", period_s=5.0, timeout_s=2.0, failures=3)  # timing if the order has no probe
_LOG_CHECK_S: Final = 1.0
_CANCEL_LIMIT_S: Final = 1.0
_SAME_S: Final = 0.05  # two ages of one event differ by the time between two reads of clocks

log = structlog.get_logger()


class StallWatch:
    """Watches whether a process generates: by its requests, and by a probe for a token if its manifest requires that.

    An async context: leaving it cancels a running probe.
    """

    def __init__(self, kept: KeptRecord, order: StartOrder, context: ProcessContext) -> None:
        self._kept = kept
        self._order = order
        self._context = context
        self._limits = StallLimits(order.stalled_requests, order.stalled_after_s)
        self._generate = None if order.probe is None else order.probe.generate
        self._probing: asyncio.Task[bool | None] | None = None
        self._active_s = context.clock()  # the last observed activity
        self._failed = 0  # failed probes in a row
        self._probed_s = 0.0
        self.why = ""  # why the process counts as stalled, as reported; or empty
        context.activity.forget(kept.key.instance)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._probing is not None and not self._probing.done():
            self._probing.cancel()
            await asyncio.wait({self._probing}, timeout=_CANCEL_LIMIT_S)

    def check(self) -> bool | None:
        """Whether it is stalled: True; False after new activity; None without news."""
        evidence, now = self._context.activity.of(self._kept.now), self._context.clock()
        if is_stalled(evidence, self._limits):
            count = len(unanswered(evidence, self._limits))
            self.why = f"{NO_ANSWER}: {count} requests have no answer, and no token came for {self._limits.after_s:g} s"
            return True
        active = self._note_activity(evidence, now)
        answered = self._take_answer(evidence, now)
        if answered is False:
            return True
        active = active or answered is True
        if active:
            self._failed, self.why = 0, ""
        self._probe(now)
        return False if active else None

    def _note_activity(self, evidence: Evidence, now: float) -> bool:
        """Whether activity is newer than the last observed."""
        ages = [age for age in (evidence.answered, evidence.counters_moved) if age is not None]
        newest = now - min(ages, default=float("inf"))
        if newest <= self._active_s + _SAME_S:
            return False
        self._active_s = newest
        return True

    def _probe(self, now: float) -> None:
        """Requests a token after a time without observed activity."""
        generate, port = self._generate, self._kept.now.port
        if generate is None or port is None or self._probing is not None:
            return
        if now - max(self._active_s, self._probed_s) >= generate.every_s:
            self._probed_s = now
            self._probing = asyncio.create_task(self._generate_token(port, generate.timeout_s), name="generate-probe")

    async def _generate_token(self, port: int, timeout_s: float) -> bool | None:
        with self._context.activity.probing(self._kept.now):
            return await self._context.prober.generate(port, timeout_s)

    def _take_answer(self, evidence: Evidence, now: float) -> bool | None:
        """Of an ended probe. True: it generates; False: it has failed often enough in a row; None: unknown."""
        probing = self._probing
        if probing is None or not probing.done():
            return None
        self._probing = None
        answered = probing.result()
        if answered:
            self._active_s = now
            return True
        if answered is None or self._order.probe is None or self._generate is None:
            return None
        took = now - self._probed_s
        idle = evidence.gpus_idle is not None and evidence.gpus_idle >= took
        if self._active_s > self._probed_s or (any(not wait.ended for wait in evidence.waits) and not idle):
            return None  # it works on other requests, or may
        self._failed += 1
        if self._failed <= self._order.probe.failures:
            log.warning("no token in time", instance=self._kept.key.instance, failures=self._failed)
        if self._failed < self._order.probe.failures:
            return None
        self.why = f"{NO_ANSWER}: no token within {self._generate.timeout_s:g} s, {self._failed} times in a row"
        return False


async def watch_health(
    kept: KeptRecord, order: StartOrder, context: ProcessContext, group: Running
) -> tuple[StopPlan, str]:
    """Probes until the process must be killed; returns the plan and the message."""
    port, clock = kept.now.port, context.clock
    probe = order.probe or _PORT_PROBE
    limits = HealthLimits(probe.failures, order.start_timeout_s, order.liveness_timeout_s)
    health = _first_health(kept, clock())
    started_s, first_delays = clock(), iter(_FIRST_PROBES_S)
    log_state = context.folders.log_state(kept.key)
    async with StallWatch(kept, order, context) as stalls:
        while True:
            if port is None:
                answered: bool | None = health.ready or clock() - started_s >= _ALIVE_AFTER_S
            else:
                answered = await context.prober.probe(order.probe, port, is_proxied=group.is_proxied)
                if group.is_unknown and not answered:
                    answered = None
            health = _after_check(
                after_probe(health, limits, answered=answered, now_s=clock()), limits, stalls, clock()
            )
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


def _after_check(health: ProcessHealth, limits: HealthLimits, stalls: StallWatch, now_s: float) -> ProcessHealth:
    """The health after a check of its generation, which a starting process is not expected to have."""
    stalled = stalls.check() if health.ready else None
    if stalled is None:
        return health
    return after_stall(health, now_s=now_s) if stalled else after_progress(health, limits)


async def rotate_log(kept: KeptRecord, context: ProcessContext, kills: deque[int]) -> None:
    """Indexes and rotates the log, and notes the kernel's kills for lack of memory. Never returns."""
    index = await asyncio.to_thread(context.folders.index, kept.key)
    await asyncio.to_thread(index.poll)  # at once, since it may not have been polled before
    while True:
        await asyncio.sleep(_LOG_CHECK_S)
        kills.append(oom_kills())
        try:
            await asyncio.to_thread(index.poll)
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
    """The process's start on the agent's clock, which counts from the boot as /proc does; at most now."""
    ticks = kept.now.pid_start_ticks
    return now_s if ticks is None else min(now_s, ticks / os.sysconf("SC_CLK_TCK"))


def _report(kept: KeptRecord, health: ProcessHealth, now_s: float, why: str) -> None:
    if (health.state, health.ready) == (kept.now.state, kept.now.ready):
        return
    first = health.ready and not kept.now.ready
    message = {"message": why} if why or kept.now.message.startswith(f"{NO_ANSWER}:") else {}
    kept.write(state=health.state, ready=health.ready, ready_s=now_s if first else kept.now.ready_s, **message)
