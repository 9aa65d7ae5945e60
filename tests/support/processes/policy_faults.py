"""Deployments under a policy during a fault, and the proof that none was stopped too early and none missed."""

import logging
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from support.processes.policies import IDLE_POLICY, SAMPLE_S, WINDOW_S, PolicyWatch, Serving, seconds

log = logging.getLogger(__name__)
BUSY_S = 8  # of those that become idle later
FAULT_AT_S = 12  # after they serve: in the middle of a window
# Far less than the part of a window before the fault: a window that began again would be later.
LATE_S = 10.0
NEEDED_S = 0.8 * WINDOW_S  # of a window, by the policy's default
_BUSY = 95
_REPORTED_S = 3.0  # from an engine's readiness to its serving, by the database


@dataclass
class Subjects:
    """Three on one worker: one is idle, one becomes idle, one is busy."""

    watch: PolicyWatch
    worker: str
    served: dict[str, Serving] = field(default_factory=dict)

    @property
    def idle(self) -> str:
        return f"idle-{self.worker}"

    @property
    def falls(self) -> str:
        return f"falls-{self.worker}"

    @property
    def busy(self) -> str:
        return f"busy-{self.worker}"

    async def apply(self) -> None:
        placement = {"workers": [self.worker]}
        for name, percent in (
            (self.idle, 0),
            (self.falls, [[BUSY_S, _BUSY], [3600, 0]]),
            (self.busy, _BUSY),
        ):
            await self.watch.idle(name, percent, placement=placement)

    async def serve(self) -> None:
        """Records since when they serve, and waits for the moment of the fault."""
        for name in (self.idle, self.falls, self.busy):
            (self.served[name],) = await self.watch.serving(name)
        await self.watch.pass_until(self.served[self.idle].since + seconds(FAULT_AT_S))
        assert await self.watch.now() < self.served[self.idle].full_at() - seconds(LATE_S)

    async def end_well(
        self, *, not_before: datetime | None = None, back_at: datetime | None = None, limit_s: float = 60.0
    ) -> None:
        """Checks that both idle ones are stopped once, as soon as a window is full and reported, and no sooner.

        Args:
            not_before: before it nothing could be reported or judged; None: the fault ended before the windows were
                full.
            back_at: from when on all could be reported and judged; None: `not_before`.
            limit_s: to wait.
        """
        heard = not_before or self.served[self.idle].since
        in_time_from = back_at or heard
        for name in (self.idle, self.falls):
            served = self.served[name]
            event = await self.watch.only_event("policy_stop", name, limit_s)
            await self.watch.check_not_early(event, [served])
            assert event["at"] >= heard, event
            full = served.full_at()
            if name == self.falls:
                full = await self.watch.last_high(served) + seconds(WINDOW_S)
                assert full >= served.full_at(WINDOW_S + BUSY_S - _REPORTED_S), event
            full = await self._covered_at(served, full)
            late_s = (event["at"] - max(full, in_time_from)).total_seconds()
            log.info("%s: stopped %.2f s after its window was full and heard of", name, late_s)
            assert late_s <= LATE_S, event
            assert event["evidence"]["window_s"] == WINDOW_S
        await self._nothing_else()

    async def _covered_at(self, served: Serving, full: datetime) -> datetime:
        """When enough of a window had been read, by the samples: where an agent starts slowly, later than `full`."""
        rows = await self.watch.rows(
            """select at, at - coalesce(read_s, period_s) * interval '1 s' as since from samples
                where device = any($1) and at > $2 order by at""",
            served.gpus,
            served.since,
        )
        for end in (row["at"] for row in rows if row["at"] >= full):
            start = end - seconds(WINDOW_S)
            covered_s = sum(
                (min(row["at"], end) - max(row["since"], start)).total_seconds()
                for row in rows if row["at"] > start and row["since"] < end
            )  # fmt: skip
            if covered_s >= NEEDED_S:
                return end  # type: ignore[no-any-return]
        return full

    async def _nothing_else(self) -> None:
        await self.watch.untouched([self.busy])
        assert await self.watch.serving(self.busy) == [self.served[self.busy]]
        for name in (self.idle, self.falls):
            assert len(await self.watch.events("policy_stop", name)) == 1
            (row,) = await self.watch.rows("select count(*) from policy_actions where deployment = $1", name)
            assert row["count"] == 1

    async def check_samples(self, since: datetime, until: datetime) -> None:
        """Checks the samples of the busy one's GPU: no gap, each period once, at its own time."""
        rows = await self.watch.rows(
            "select at, seq from samples where device = any($1) and at between $2 and $3 order by at",
            self.served[self.busy].gpus,
            since,
            until,
        )
        assert len({row["seq"] for row in rows}) == len(rows)
        times = [since, *(row["at"] for row in rows), until]
        gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
        assert max(gaps) <= 2 * SAMPLE_S + 1, gaps
        spread = (until - since).total_seconds() / SAMPLE_S
        assert 0.8 * spread - 2 <= len(rows) <= 1.2 * spread + 2, (len(rows), spread)


async def subjects_on(watch: PolicyWatch, *workers: str) -> list[Subjects]:
    """Three on each of these workers, under the default policy."""
    await watch.put("stop-idle", default=True, **IDLE_POLICY)
    found = [Subjects(watch, worker) for worker in workers]
    for subjects in found:
        await subjects.apply()
    return found
