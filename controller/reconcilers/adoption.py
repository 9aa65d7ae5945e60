"""After a loss of commits, takes running processes that agents report back into the ledger where they are wanted."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import structlog

from controller.decide.adoption import plan_adoption
from controller.runtime.lease import term_transaction
from controller.runtime.outcome import Done, Outcome, Requeue
from controller.store.core.database import Database
from controller.store.deployments import adoption

log = structlog.get_logger(__name__)

EVERYTHING: Final = "all"
_HELD_S: Final = 0.1
_UNDECIDED_S: Final = 1.0


class AdoptionReconciler:
    """Has a single key. Until its first step has settled the ledger nothing is placed, started or stopped.

    `reported`: whether agents have reported their processes, or have had the time to. `settled` is called after each
    step: running processes are in the ledger.
    """

    kind = "adoption"

    def __init__(
        self, database: Database, term: int, *, reported: Callable[[], bool], settled: Callable[[], None]
    ) -> None:
        self._database = database
        self._term = term
        self._reported = reported
        self._settled = settled

    async def list_keys(self) -> Collection[str]:
        return (EVERYTHING,)

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """Decides on all orphans. Raises StaleError, and writes nothing, if another term leads."""
        async with self._database.connection() as connection:
            unsettled, orphans = await adoption.is_unsettled(connection)
        if unsettled and not self._reported():
            return dict.fromkeys(keys, Requeue(_HELD_S))
        undecided = await self._adopt(unsettled=unsettled) if unsettled or orphans else 0
        self._settled()
        return dict.fromkeys(keys, Requeue(_UNDECIDED_S) if undecided else Done())

    async def _adopt(self, *, unsettled: bool) -> int:
        """Returns the number of undecided orphans. Its transaction locks what it decides on."""
        async with term_transaction(self._database, self._term) as connection:
            state = await adoption.lock_orphans(connection)
            plan = plan_adoption(
                state.orphans,
                state.deployments,
                state.devices,
                owners=state.owners,
                reporting=state.reported if unsettled else (),  # later on starts may be on their way
            )
            if plan.adopted or plan.refused:
                await adoption.carry_out_adoption(connection, plan, state)
            if unsettled:
                await adoption.settle(connection)
        if state.orphans:
            log.warning(
                "what runs is taken back after a loss of commits",
                adopted=len(plan.adopted),
                refused=len(plan.refused),
                undecided=plan.undecided,
            )
        return plan.undecided
