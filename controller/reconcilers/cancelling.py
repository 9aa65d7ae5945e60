"""Ends analyses whose deployment was deleted or changed, on a road of its own: one narrow read, no write.

The instances' step would find it, too, but it looks at hundreds of deployments together, reads all that hangs on them
and waits for locks, and a computation that nobody needs shall not wait for that. Only what cannot be taken back counts
here, a tombstone and a newer revision: what was read may be old by the time it is acted on. Stops are that step's.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from controller.domain.instances import RevisionFacts
from controller.leader.analyses import Analyses
from controller.runtime.outcome import Done, Outcome
from controller.store.core.database import Database
from controller.store.deployments.analysis_inputs import CurrentInput, current_inputs


class CancellingReconciler:
    """Keys are uids of deployments for which something is being worked out."""

    kind = "analysis"

    def __init__(self, database: Database, analyses: Analyses) -> None:
        self._database = database
        self._analyses = analyses

    async def list_keys(self) -> Collection[str]:
        """All for which something is being worked out."""
        return self._analyses.uids()

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """Cancels what is needless among these."""
        async with self._database.connection() as connection:
            inputs = await current_inputs(connection, keys)
        for uid in keys:
            running = self._analyses.under_way(uid)
            if running is None:
                continue
            current = inputs.get(uid)
            if current is None:
                self._analyses.cancel(uid, committed_at=None)
            elif (since := needless_since(running, current)) is not None:
                self._analyses.cancel(uid, committed_at=since)
        return dict.fromkeys(keys, Done())


def needless_since(running: RevisionFacts, current: CurrentInput) -> datetime | None:
    """Since when nobody waits for the analysis of `running`; None where somebody does.

    A newer revision of the same input does: it goes on with the same computation.
    """
    if current.deleted_at is not None:
        return current.deleted_at
    if running.generation < current.revision and running.input_hash != current.input_hash:
        return current.revised_at
    return None
