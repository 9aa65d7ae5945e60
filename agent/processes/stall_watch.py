"""Watches whether a process generates: by its requests, and by asking it for a token where its manifest says so."""

import asyncio
from types import TracebackType
from typing import Final, Self

import structlog

from agent.decide.stalls import Evidence, StallLimits, is_stalled, unanswered
from agent.processes.kept_record import KeptRecord
from agent.processes.process_context import ProcessContext
from schemas.wire import NO_ANSWER, StartOrder

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
