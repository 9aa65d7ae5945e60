"""Moves of instances: a few at a time. What becomes of each is decided with its deployment's other instances."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from controller.runtime.lease import check_term
from controller.runtime.outcome import Done, Outcome, Requeue
from controller.store.core.database import Database
from controller.store.deployments.relocations import begin_relocations

ALL: Final = "all"
_LOOK_AGAIN_S: Final = 10.0  # an instance that is gone before its move began tells nobody here


class RelocationsReconciler:
    """Begins moves that wait. One key, so the bound holds. Lives as long as one term."""

    kind = "relocation"

    def __init__(self, database: Database, term: int, *, at_once: int) -> None:
        self._database = database
        self._term = term
        self._at_once = at_once

    async def list_keys(self) -> Collection[str]:
        """The one key."""
        return [ALL]

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        """Begins what may begin."""
        async with self._database.transaction() as connection:
            await check_term(connection, self._term)
            left = await begin_relocations(connection, at_once=self._at_once)
        outcome: Outcome = Requeue(_LOOK_AGAIN_S) if left else Done()
        return dict.fromkeys(keys, outcome)
