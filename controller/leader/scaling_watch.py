"""The feed of demand for the autoscaler: once a second it reads gateways' reports, and finds deployments to step.

The past of each deployment is kept here, in a term's memory. If a wish differs from the present number, the deployment
is stepped, which reads and decides again.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from controller.decide.scaling.decide import decide_scaling, judge_cap, rule_of, scaling_evidence
from controller.decide.scaling.history import ScalingHistory
from controller.domain.scaling import Demand, GatewayLoad, ScalingRule, ScalingSnapshot, ScalingStep, ScalingView, Wish
from controller.domain.wanted import is_put_to_sleep
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.tasks import TimeSlice
from controller.store.core.database import Database
from controller.store.scaling.observe import Reports, read_reports

log = structlog.get_logger(__name__)

POLL_S: Final = 1.0
SILENT_S: Final = 10.0  # a gateway that has not reported for that long is silent
_ENGINES_FOR_S: Final = 45.0  # an engine's report counts for that long; agents send one each 10 s
_STATUS_EVERY_S: Final = 15.0  # evidence and graph of a deployment with requests
_REASON_EVERY_S: Final = 5.0  # between writes of another reason for the same number
_GATHER_S: Final = 0.02  # wakes within this time are read together
_Decided = tuple[ScalingView, Wish]
_NO_LOADS: Final[Mapping[str, GatewayLoad]] = {}


@dataclass(slots=True)
class _Watched:
    """A deployment, as its last step read it, with its past."""

    snapshot: ScalingSnapshot
    rule: ScalingRule
    history: ScalingHistory
    written_at: float
    decided: _Decided | None = None  # by the last poll; None: no poll has read this state


class ScalingWatch:
    """The demand of all deployments whose replicas follow the requests. Lives as long as one term."""

    def __init__(self, database: Database, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._monotonic = monotonic
        self._watched: dict[str, _Watched] = {}
        self._reports = Reports()
        self._beats: dict[str, tuple[int, float]] = {}  # by gateway: its last beat, and when it was first read here
        self._poked = asyncio.Event()

    async def run(self, clock: Clock, wake: Callable[[str], None]) -> None:
        """Polls once a second, and at each wake the woken deployments, until cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time() + POLL_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._poked.wait()
            self._poked.clear()
            await clock.sleep(_GATHER_S)
            is_due = loop.time() >= due
            try:
                for uid in await self.poll(woken_only=not is_due):
                    wake(uid)
            except DATABASE_ERRORS as error:  # the next poll reads the same
                log.warning("demand could not be read", error=str(error) or type(error).__name__)
            if is_due:  # counted from the end, since a poll may take long
                due = loop.time() + POLL_S

    def poke(self) -> None:
        """Polls now: a request waits for a wake, or no longer does."""
        self._poked.set()

    def watches(self, uid: str) -> bool:
        """Whether the replicas of this deployment followed the requests at its last step."""
        return uid in self._watched

    async def poll(self, *, woken_only: bool = False) -> set[str]:
        """Reads reports; returns the deployments that need a step because of them.

        `woken_only`: decides only for deployments that requests or operators wake, or did before.
        """
        if not self._watched:
            return set()
        before = self._woken()
        async with self._database.snapshot() as connection:
            await self.read(connection)
        uids = (before | self._woken()) & self._watched.keys() if woken_only else set(self._watched)
        await self.decide(uids)
        now = self._monotonic()
        return {uid for uid in uids & self._watched.keys() if self._to_write(self._watched[uid], now)}

    async def read(self, connection: Any) -> None:
        """Reads reports. The connection must be in one REPEATABLE READ transaction."""
        self._take(await read_reports(connection, engines_for_s=_ENGINES_FOR_S))

    async def decide(self, uids: Iterable[str]) -> None:
        """Decides for these deployments by the last read."""
        turn = TimeSlice()
        for uid in uids:
            await turn.yield_if_over()
            if (watched := self._watched.get(uid)) is not None:
                self._decide(uid, watched)

    def _woken(self) -> set[str]:
        return self._reports.wakes.keys() | self._reports.awake_for_s.keys()

    def _take(self, reports: Reports) -> None:
        now = self._monotonic()
        beats: dict[str, tuple[int, float]] = {}
        for gateway in reports.gateways:
            known = self._beats.get(gateway.id)
            beats[gateway.id] = known if known is not None and known[0] == gateway.beat else (gateway.beat, now)
        self._beats, self._reports = beats, reports

    def _decide(self, uid: str, watched: _Watched) -> None:
        now, view = self._monotonic(), self._view(uid, watched)
        watched.history.observe(view, now)
        wish = decide_scaling(view, watched.history, now)
        watched.history.note(wish.needed, now)
        if watched.snapshot.cap is not None and view.known:
            watched.history.compare_to_cap(watched.snapshot.cap.number, wish.needed, watched.rule.down_window_s, now)
        watched.decided = view, wish

    def know(self, observed: Mapping[str, ScalingSnapshot], keys: Collection[str]) -> None:
        """Watches these deployments in their observed state; forgets those keys that were not observed."""
        now = self._monotonic()
        for uid in keys:
            snapshot = observed.get(uid)
            if snapshot is None:
                self._watched.pop(uid, None)
                continue
            rule = rule_of(snapshot.spec, snapshot.engine, snapshot.sequences)
            known = self._watched.get(uid)
            if known is None:
                present = ScalingView(rule, snapshot.number).present
                history = ScalingHistory(now, present, at_min=present == rule.min)
                before = None
                known = self._watched[uid] = _Watched(snapshot, rule, history, float("-inf"))
            else:
                before = known.snapshot.cap
                known.snapshot, known.rule, known.decided = snapshot, rule, None
            if snapshot.cap is not None and (before is None or before.set_at != snapshot.cap.set_at):
                known.history.cap_set(now, snapshot.cap.outgrown_s)

    def steps(self, uids: Iterable[str]) -> list[ScalingStep]:
        """The steps to write for these deployments, after `know`, `read` and `decide`."""
        steps: list[ScalingStep] = []
        now = self._monotonic()
        for uid in uids:
            watched = self._watched[uid]
            if (decided := self._to_write(watched, now)) is not None:
                steps.append(self._step(watched, *decided, now))
        return steps

    def written(self, steps: Iterable[ScalingStep]) -> None:
        """Records that these steps took effect."""
        now = self._monotonic()
        for step in steps:
            if (watched := self._watched.get(step.snapshot.uid)) is not None:
                watched.written_at = now
                if step.applies and step.wish.saturated:
                    watched.history.raised(now)

    def _to_write(self, watched: _Watched, now: float) -> _Decided | None:
        """The decision, if it must be written."""
        if watched.decided is None:
            return None
        view, wish = watched.decided
        differs = self._differs(watched, view, wish, now)
        return watched.decided if differs or self._is_due(watched, wish, now) else None

    def _is_due(self, watched: _Watched, wish: Wish, now: float) -> bool:
        """Whether fields that are only shown must be written: the reason, and the graph while it is not flat."""
        passed_s, stored = now - watched.written_at, watched.snapshot.stored
        if stored is not None and stored.reason != str(wish.reason) and passed_s >= _REASON_EVERY_S:
            return True
        return passed_s >= _STATUS_EVERY_S and any(watched.history.graph())

    def _differs(self, watched: _Watched, view: ScalingView, wish: Wish, now: float) -> bool:
        """Whether the step must be written at once: another number or cap, or another gateway that is silent."""
        stored, cap = watched.snapshot.stored, watched.snapshot.cap
        verdict = judge_cap(cap, view, watched.history, now, wish)
        return (
            verdict.lifts
            or (cap is not None and verdict.outgrown != (cap.outgrown_s is not None))
            or stored is None
            or stored.number != wish.number
            or wish.number != view.present
            or stored.silent != view.demand.silent
            or stored.dry_run != watched.rule.dry_run
            or (view.slept_by_policy and wish.number > 0)
        )

    def _step(self, watched: _Watched, view: ScalingView, wish: Wish, now: float) -> ScalingStep:
        snapshot = watched.snapshot
        requests = self._reports.wakes.get(snapshot.uid, ())
        cap = judge_cap(snapshot.cap, view, watched.history, now, wish)
        step = ScalingStep(
            snapshot=snapshot,
            wish=wish,
            evidence=scaling_evidence(view, watched.history, now, wish),
            silent=view.demand.silent,
            applies=False,
            lifts_policy=view.slept_by_policy and wish.number > 0,
            outgrown=cap.outgrown,
            lifts_cap=cap.lifts,
            request_id=requests[0] if requests else "",
        )
        return replace(step, applies=wish.number != step.number_before or step.lifts_policy or step.lifts_cap)

    def _view(self, uid: str, watched: _Watched) -> ScalingView:
        reports, snapshot = self._reports, watched.snapshot
        return ScalingView(
            rule=watched.rule,
            number=snapshot.number,
            replicas=snapshot.replicas,
            demand=self._demand(reports.loads.get(uid, _NO_LOADS)),
            engines=tuple(reports.engines.get(uid, ())),
            wakes=len(reports.wakes.get(uid, ())),
            awake_for_s=reports.awake_for_s.get(uid, 0.0),
            slept_by_policy=is_put_to_sleep(snapshot.spec, snapshot.intents),
        )

    def _demand(self, loads: Mapping[str, GatewayLoad]) -> Demand:
        now = self._monotonic()
        silence = {g.id: now - self._beats[g.id][1] for g in self._reports.gateways}
        silent = {g.id: g.name for g in self._reports.gateways if silence[g.id] >= SILENT_S}
        return Demand(
            loads=tuple(load for gateway, load in loads.items() if gateway not in silent),
            silent=tuple(sorted(silent.values())),
            gateways=len(self._reports.gateways) - len(silent),
            silent_s=min((silence[id_] for id_ in silent), default=0.0),
        )
