"""Utilization policies: observe → decide → apply for batches of deployments, and the feed of samples that wakes them.

What is read of a deployment is kept until its next step, so that each arriving sample is judged in memory. Only where
that shows something to do is a step made, which reads and judges everything anew.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from controller.decide.policies.actions import decide_policy, is_judged, look_again
from controller.domain.policies import EffectivePolicy, PolicyFacts, PolicyPlan, WatchedInstance
from controller.domain.utilization import InstanceUse
from controller.leader.telemetry import Telemetry, Watched
from controller.runtime.clock import Clock
from controller.runtime.database import DATABASE_ERRORS
from controller.runtime.lease import check_term
from controller.runtime.outcome import Done, Outcome, Requeue, StaleError
from controller.store.core.database import Database
from controller.store.core.errors import LostGuardError
from controller.store.policies.effects import Planned, carry_out_policies, end_actions
from controller.store.policies.observe import list_unended, list_watched, observe_policies, read_clock
from controller.store.telemetry.sample_reads import read_history, read_horizon, read_new
from schemas.wire import SAMPLE_S

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.5
_SILENT_S: Final = 30.0  # without a new sample an instance is judged again this often: its coverage shrinks
_MAX_PAST: Final = 50_000  # samples of the past read in one step, about: parsing them holds the loop


class PolicyMetrics(Protocol):
    """What policies count."""

    def judged(self, verdict: str) -> None:
        """An instance was judged `idle`, `busy` or `unknown`."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A deployment with a policy as its last step read it. Instances by id, those only that are judged."""

    policy: EffectivePolicy
    instances: Mapping[str, WatchedInstance]


class PoliciesReconciler:
    """Keys are deployments' uids. Lives as long as one term. `sample_s`: the agents' sampling period."""

    kind = "policy"

    def __init__(self, database: Database, term: int, metrics: PolicyMetrics, *, sample_s: float = SAMPLE_S) -> None:
        self._database = database
        self._term = term
        self._metrics = metrics
        self._max_past_s = _MAX_PAST * sample_s  # as many GPUs, times as many seconds
        self._telemetry = Telemetry()
        # A look whose snapshot is newer than a step's would pass by what that step only begins to watch.
        self._reading = asyncio.Lock()
        self._horizon: str | None = None
        self._concerned: set[Watched] = set()  # by samples that have come since the last look
        self._known: dict[str, _Known] = {}
        self._judged_at: dict[Watched, float] = {}

    async def list_keys(self) -> Collection[str]:
        """All deployments that a policy may have to do with."""
        async with self._database.connection() as connection:
            return await list_watched(connection)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """Judges all instances of these deployments, and does what their policies ask."""
        async with self._reading, self._database.snapshot() as connection:
            await self._catch_up(connection)
            observed = await observe_policies(connection, keys)
            unended = await list_unended(connection, sorted(set(keys) - observed.keys()))
            await self._read_past(connection, observed)
        outcomes: dict[str, Outcome] = dict.fromkeys(keys, Done())
        planned: list[Planned] = []
        for uid, facts in observed.items():
            if self._telemetry.missing(uid):
                outcomes[uid] = Requeue(0.0)
            else:
                planned.append((facts, self._decide(facts)))
        for uid in set(keys) - observed.keys():
            self._forget(uid)
        await self._apply([p for p in planned if p[1].writes], unended)
        return outcomes

    async def look(self) -> set[str]:
        """Takes in the samples that have come; the deployments to be looked at because of them, or of silence."""
        async with self._reading, self._database.snapshot() as connection:
            await self._catch_up(connection)
            now = await read_clock(connection)
        silent = {w for w, at in self._judged_at.items() if not 0 <= now - at < _SILENT_S}
        concerned, self._concerned = self._concerned | silent, set()
        return self._look_at(concerned, now)

    async def _catch_up(self, connection: Any) -> None:
        """Every sample that could not be seen at the last look. The first look begins with the present."""
        if self._horizon is None:
            self._horizon = await read_horizon(connection)
            return
        samples, self._horizon = await read_new(connection, self._horizon)
        self._concerned |= self._telemetry.put(samples)

    async def _read_past(self, connection: Any, observed: Mapping[str, PolicyFacts]) -> None:
        """What the windows still lack, of as many GPUs as one step may read; of one at least, so that all come in."""
        wanted: set[str] = set()
        furthest_s = now = 0.0
        for uid, facts in observed.items():
            self._forget_judged(uid)  # what was known names what may be watched no more
            self._telemetry.watch(facts)
            now = facts.now
            for gpu, reach_s in self._telemetry.missing(uid).items():
                further_s = max(furthest_s, reach_s)
                if not wanted or (len(wanted) + 1) * further_s <= self._max_past_s:
                    wanted.add(gpu)
                    furthest_s = further_s
        if wanted:
            samples = await read_history(connection, wanted, now - furthest_s)
            self._telemetry.put_past(wanted, furthest_s, samples)

    def _decide(self, facts: PolicyFacts) -> PolicyPlan:
        uses: dict[str, InstanceUse] = {}
        if facts.policy is not None and not facts.deleted:
            watched = {i.id: i for i in facts.instances if is_judged(i)}
            uses = {name: self._telemetry.use_of(i) for name, i in watched.items()}
            self._known[facts.uid] = _Known(facts.policy, watched)
            self._judged_at |= dict.fromkeys(((facts.uid, name) for name in watched), facts.now)
        plan = decide_policy(facts, uses)
        for verdict in plan.judged:
            self._metrics.judged(verdict)
        return plan

    def _look_at(self, concerned: Iterable[Watched], now: float) -> set[str]:
        found: set[str] = set()
        for uid, name in concerned:
            known = self._known.get(uid)
            instance = known.instances.get(name) if known is not None else None
            if known is None or instance is None:
                continue
            verdict, differs = look_again(known.policy, instance, self._telemetry.use_of(instance), now)
            self._metrics.judged(verdict.verdict)
            self._judged_at[uid, name] = now
            if differs:
                found.add(uid)
        return found

    def _forget(self, uid: str) -> None:
        self._telemetry.forget(uid)
        self._forget_judged(uid)

    def _forget_judged(self, uid: str) -> None:
        known = self._known.pop(uid, None)
        for name in known.instances if known is not None else ():
            self._judged_at.pop((uid, name), None)

    async def _apply(self, planned: Sequence[Planned], unended: Sequence[str]) -> None:
        if not planned and not unended:
            return
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            try:
                await carry_out_policies(connection, planned)
                await end_actions(connection, unended)
            except LostGuardError as lost:
                raise StaleError(str(lost)) from lost


async def feed_samples(reconciler: PoliciesReconciler, clock: Clock, wake: Callable[[str], None]) -> None:
    """Looks at what has come, each half second, until cancelled. What a look cannot read comes with a later one."""
    while True:
        await clock.sleep(_POLL_S)
        try:
            for uid in await reconciler.look():
                wake(uid)
        except DATABASE_ERRORS as error:
            log.warning("samples could not be read", error=str(error) or type(error).__name__)
