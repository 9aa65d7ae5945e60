"""The feed of samples for utilization policies: it finds the deployments whose verdicts change as samples arrive.

The state that a deployment's last step read is kept, so each arriving sample is judged in memory. Only if a verdict
differs from the stored verdict, the deployment is stepped, which reads and judges everything again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from controller.decide.policies.actions import is_judged, judge_again
from controller.domain.policies import EffectivePolicy, PolicySnapshot, WatchedInstance
from controller.domain.telemetry.utilization import InstanceUse
from controller.leader.policy_samples import Telemetry, Watched, history_gaps, minutes_of, oldest_known, start_of_minute
from controller.runtime.clock import JUMP_S, Clock
from controller.runtime.lease import LEADER_ERRORS, check_term
from controller.runtime.metrics import Metrics
from controller.runtime.tasks import TimeSlice
from controller.store.core.database import Database
from controller.store.deployments.start_times import leave_out
from controller.store.policies.observe import Leap, add_leaps, read_clock, read_leaps
from controller.store.telemetry.minutes import read_low_since, read_unrolled
from controller.store.telemetry.samples import read_history, read_horizon, read_new
from schemas.wire import SAMPLE_S

log = structlog.get_logger(__name__)

_MAX_LEAPS: Final = 100
_POLL_S: Final = 0.5
_TRIM_S: Final = 60.0  # far longer than a step waits for its turn
_SILENT_S: Final = 30.0  # an instance without new samples is judged this often: its coverage shrinks
_MINUTE_COSTS_S: Final = 5.0  # reading a stored minute takes as long as this many seconds of samples
_MAX_PAST: Final = 50_000  # past samples read in a step, approximately: parsing them blocks the event loop


@dataclass(frozen=True, slots=True)
class _Known:
    """A deployment with a policy, as its last step read it: its judged instances by id."""

    policy: EffectivePolicy
    instances: Mapping[str, WatchedInstance]


class PolicyWatch:
    """The telemetry of all instances that policies judge. Lives as long as one term.

    Args:
        database: of the samples.
        metrics: to count in.
        sample_s: the agents' sampling period.
        monotonic: seconds that never leap, to detect leaps of the database's clock.
        term: of this leader, which guards its writes of leaps; None for a single leader.
    """

    def __init__(
        self,
        database: Database,
        metrics: Metrics,
        *,
        sample_s: float = SAMPLE_S,
        monotonic: Callable[[], float] = time.monotonic,
        term: int | None = None,
    ) -> None:
        self._database = database
        self._metrics = metrics
        self._term = term
        self._max_past_s = _MAX_PAST * sample_s  # GPUs times seconds
        self._telemetry = Telemetry()
        self._monotonic = monotonic
        self._clocks: tuple[float, float, float] | None = None  # the database's, and ours before and after its reading
        self._unsaved: list[Leap] = []  # leaps that a later leader could not know yet
        # One reader at a time: a poll with a newer snapshot than a step's would skip GPUs that this starts to watch.
        self._reading = asyncio.Lock()
        self._horizon: str | None = None
        self._concerned: set[Watched] = set()  # instances with new samples since the last poll
        self._known: dict[str, _Known] = {}
        self._judged_at: dict[Watched, float] = {}
        self._trimmed_at = monotonic()

    async def run(self, clock: Clock, wake: Callable[[str], None]) -> None:
        """Polls new samples twice a second until cancelled, and wakes the deployments that need a step."""
        while True:
            await clock.sleep(_POLL_S)
            try:
                for uid in await self.poll():
                    wake(uid)
            except LEADER_ERRORS as error:  # the next poll reads the same samples
                log.warning("samples could not be read", error=str(error) or type(error).__name__)

    async def poll(self) -> set[str]:
        """Reads new samples; returns the deployments that need a step because of them, or of silence."""
        if self._monotonic() - self._trimmed_at >= _TRIM_S:
            self._trimmed_at = self._monotonic()
            self._telemetry.trim()
        async with self.reading() as connection:
            before = self._monotonic()
            now = await read_clock(connection)
        self._compare_clocks(now, before)
        await self._save_leaps()
        silent = {w for w, at in self._judged_at.items() if not 0 <= now - at < _SILENT_S}
        concerned, self._concerned = self._concerned | silent, set()
        return await self.judge(concerned, now)

    def _compare_clocks(self, now: float, before: float) -> None:
        """Detects a leap of the database's clock: time that did not pass, or that passes twice."""
        after = self._monotonic()
        if self._clocks is not None:
            theirs_s, leaps = now - self._clocks[0], self._telemetry.leaps
            most_s, least_s = after - self._clocks[1], before - self._clocks[2]  # what passed between the readings
            if theirs_s - most_s > JUMP_S:
                log.warning("the database's clock has leapt forward", seconds=round(theirs_s - most_s))
                self._unsaved.append(Leap(now, back=False, leapt_s=theirs_s - most_s))
                forward = (*leaps.forward[-_MAX_LEAPS:], (now, theirs_s - most_s))
                self._telemetry.leaps = replace(leaps, forward=forward)
            elif least_s - theirs_s > JUMP_S:
                log.warning("the database's clock was set back", seconds=round(least_s - theirs_s))
                self._unsaved.append(Leap(now, back=True, leapt_s=most_s - theirs_s))
                back = (*leaps.back[-_MAX_LEAPS:], (now, now + most_s - theirs_s))
                self._telemetry.leaps = replace(leaps, back=back)
        self._clocks = (now, before, after)

    async def _save_leaps(self) -> None:
        """Stores new leaps for later leaders; after a failure a later poll does."""
        if not self._unsaved:
            return
        leaps = self._unsaved[-_MAX_LEAPS:]
        async with self._database.transaction() as connection:
            if self._term is not None:
                await check_term(connection, self._term)
            await add_leaps(connection, leaps)
            for leap in leaps:
                if not leap.back:  # such as of a host that was suspended
                    await leave_out(connection, leap.leapt_s)
        self._unsaved.clear()

    async def judge(self, concerned: Iterable[Watched], now: float) -> set[str]:
        """Judges these instances; returns the deployments with a verdict that differs from the stored verdict.

        A step that runs at the same time judges its deployments later than `now`, so they are left to it.
        """
        changed: set[str] = set()
        turn, before = TimeSlice(), dict(self._known)
        for uid, name in concerned:
            await turn.yield_if_over()
            known = self._known.get(uid)
            instance = known.instances.get(name) if known is not None else None
            if known is None or instance is None or known is not before.get(uid):
                continue
            verdict, differs = judge_again(known.policy, instance, self._telemetry.use_of(instance), now)
            self._metrics.judged(verdict.verdict)
            self._judged_at[uid, name] = now
            if differs:
                changed.add(uid)
        return changed

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Any]:
        """A snapshot of the database, after taking in all its samples."""
        async with self._reading, self._database.snapshot() as connection:
            await self._read_new(connection)
            yield connection

    async def read_past(self, connection: Any, observed: Mapping[str, PolicySnapshot]) -> None:
        """Watches these deployments, and reads past samples that their windows lack.

        One step reads a limited number of GPUs, and at least one, so that all are read in the end.
        """
        for uid, snapshot in observed.items():
            self._forget_judged(uid)  # its instances may have changed
            self._telemetry.watch(snapshot)
        now = max((snapshot.now for snapshot in observed.values()), default=0.0)
        missing = {gpu: s for uid in observed for gpu, s in self._telemetry.missing(uid).items()}
        known = {gpu: at for snapshot in observed.values() for gpu, at in oldest_known(snapshot).items()}
        old = [gpu for gpu, reach_s in missing.items() if known.get(gpu, now) < now - reach_s]
        unrolled = await read_unrolled(connection, old) if old else {}
        wanted: set[str] = set()
        furthest_s = spent_s = 0.0
        for gpu, reach_s in missing.items():
            further_s = max(furthest_s, reach_s, now - unrolled.get(gpu, now))
            minutes = minutes_of(now - further_s - known.get(gpu, now))
            if not wanted or (len(wanted) + 1) * further_s + spent_s + minutes * _MINUTE_COSTS_S <= self._max_past_s:
                wanted.add(gpu)
                furthest_s = further_s
                spent_s += minutes * _MINUTE_COSTS_S
        if wanted:
            since = start_of_minute(now - furthest_s)
            samples = await read_history(connection, wanted, since)
            self._telemetry.put_past(observed.keys(), wanted, furthest_s, samples)
            await self._examine_gaps(connection, observed.values(), dict.fromkeys(wanted, since))

    async def _examine_gaps(
        self, connection: Any, observed: Iterable[PolicySnapshot], read: Mapping[str, float]
    ) -> None:
        """Finds use and missing samples in the time that verdicts cover and memory does not."""
        gaps = [gap for snapshot in observed for gap in history_gaps(snapshot, read)]
        for gap, at in zip(gaps, await read_low_since(connection, [g.stretch for g in gaps]), strict=True):
            if at is not None:
                self._telemetry.put_low_after(gap.instance, gap.devices, at)

    def is_complete(self, uid: str) -> bool:
        """Whether the past of all the deployment's GPUs has been read."""
        return not self._telemetry.missing(uid)

    def uses_of(self, snapshot: PolicySnapshot) -> dict[str, InstanceUse]:
        """The telemetry of every instance of the deployment that its policy judges."""
        if snapshot.policy is None or snapshot.deleted:
            return {}
        judged = {i.id: i for i in snapshot.instances if is_judged(i)}
        self._known[snapshot.uid] = _Known(snapshot.policy, judged)
        self._judged_at |= dict.fromkeys(((snapshot.uid, name) for name in judged), snapshot.now)
        return {name: self._telemetry.use_of(i) for name, i in judged.items()}

    def forget(self, uid: str) -> None:
        self._telemetry.forget(uid)
        self._forget_judged(uid)

    def _forget_judged(self, uid: str) -> None:
        known = self._known.pop(uid, None)
        for name in known.instances if known is not None else ():
            self._judged_at.pop((uid, name), None)

    async def _read_new(self, connection: Any) -> None:
        """Reads all samples that the last read could not see. The first read starts at the present."""
        if self._horizon is None:
            self._telemetry.leaps = await read_leaps(connection)  # of earlier leaders
            self._horizon = await read_horizon(connection)
            return
        samples, self._horizon = await read_new(connection, self._horizon)
        self._concerned |= self._telemetry.put(samples)
