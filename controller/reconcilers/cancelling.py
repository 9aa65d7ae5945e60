"""Cancels analyses whose deployment was deleted or changed: one narrow read, no write.

A notified deletion ends its analysis at once (`term.py`). This reconciler notices changed specs, and deletions whose
notification was lost or arrived before the analysis started.

The instances' step would cancel them too. But it reads all rows of hundreds of deployments and waits for locks, and an
obsolete computation must not wait for that. This read may be outdated when it is used, so only a tombstone and a newer
revision count, which cannot be undone. Stops are left to the instances' step.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from controller.domain.instances import Revision
from controller.leader.analyses import Analyses
from controller.runtime.outcome import Done, Outcome
from controller.store.core.database import Database
from controller.store.deployments.observe import CurrentInput, current_inputs


class CancellingReconciler:
    """Keys are uids of deployments with a running analysis."""

    kind = "analysis"

    def __init__(self, database: Database, analyses: Analyses) -> None:
        self._database = database
        self._analyses = analyses

    async def list_keys(self) -> Collection[str]:
        return self._analyses.uids()

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        if not any(map(self._analyses.running, keys)):
            return dict.fromkeys(keys, Done())
        async with self._database.connection() as connection:
            inputs = await current_inputs(connection, keys)
        for uid in keys:
            running = self._analyses.under_way(uid)
            if running is None:
                continue
            current = inputs.get(uid)
            if current is None:
                self._analyses.cancel(uid, committed_at=None)
            elif (since := obsolete_since(running, current)) is not None:
                self._analyses.cancel(uid, committed_at=since)
        return dict.fromkeys(keys, Done())


def obsolete_since(running: Revision, current: CurrentInput) -> datetime | None:
    """Returns when the analysis of `running` became obsolete; None if a revision needs it, also one of equal input."""
    if current.deleted_at is not None:
        return current.deleted_at
    if running.generation < current.revision and running.input_hash != current.input_hash:
        return current.revised_at
    return None
