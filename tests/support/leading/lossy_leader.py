"""A leader as the daemon composes it; some of its wake-ups are lost."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from controller import term as composed
from controller.domain.restart_delays import RestartSettings
from controller.runtime.clock import SystemClock
from controller.runtime.feed import ChangeFeed
from controller.runtime.metrics import Metrics
from controller.settings import ControllerSettings
from controller.store.core.database import Database
from controller.term import Leading, Term
from support.leading.lifecycle import PATIENT, RESTARTS, Crew

RESYNC_S = 0.1
Drops = Callable[[str], bool]  # whether a wake-up of this kind is lost


class _Settings(ControllerSettings):
    @property
    def restarts(self) -> RestartSettings:
        """Those of the lifecycle, so that the pictures are comparable."""
        return RESTARTS


def shorten_resyncs(patch: pytest.MonkeyPatch) -> None:
    """Shortens every loop's resync from a minute to a moment."""
    for name in ("_INSTANCES", "_CANCELLING", "_ONE_AT_A_TIME"):
        patch.setattr(composed, name, replace(getattr(composed, name), resync_s=RESYNC_S))


def cut_wakes(patch: pytest.MonkeyPatch) -> None:
    """Stops the loops from waking one another too."""
    for name in ("_wake_deployment", "_recheck_analysis"):
        patch.setattr(composed.Term, name, lambda _self, _uid: None)
    patch.setattr(composed.Term, "_wake_placement", lambda _self: None)


@asynccontextmanager
async def leader(db: Database, drops: Drops) -> AsyncIterator[list[str]]:
    """Leads over the database; yields the kinds of the wake-ups lost so far."""
    lost: list[str] = []
    clock = SystemClock()
    term = (await Crew.begin(db)).term
    settings = _Settings(unreachable_after_s=PATIENT.unreachable_after_s)
    lead = Leading(lambda number: Term(db, number, clock, Metrics(CollectorRegistry()), settings, lambda: 1e9))

    def hear(kind: str, id_: str | None) -> None:
        if drops(kind):
            lost.append(kind)
        else:
            lead.hint(kind, id_)

    feed = ChangeFeed(db.listen_connection, hear, clock, rng=random.Random(1))  # noqa: S311 - jitter
    tasks = [
        asyncio.create_task(lead.lead(term), name="term"),
        asyncio.create_task(feed.run(), name="feed"),
    ]
    try:
        yield lost
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=20)
    assert all(task.cancelled() for task in tasks), tasks
