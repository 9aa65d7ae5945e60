"""Begins relocations, a few at a time. Their further steps are decided with their deployment's instances."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from controller.runtime.lease import term_transaction
from controller.runtime.outcome import Done, Outcome, Requeue
from controller.store.core.database import Database
from controller.store.deployments.relocations import begin_relocations

ALL: Final = "all"
_RETRY_S: Final = 10.0  # an instance that ended before its relocation sends no hint for it


class RelocationsReconciler:
    """Has a single key, so that the limit `at_once` holds."""

    kind = "relocation"

    def __init__(self, database: Database, term: int, *, at_once: int) -> None:
        self._database = database
        self._term = term
        self._at_once = at_once

    async def list_keys(self) -> Collection[str]:
        return [ALL]

    async def step(self, keys: Sequence[str]) -> Mapping[str, Outcome]:
        async with term_transaction(self._database, self._term) as connection:
            left = await begin_relocations(connection, at_once=self._at_once)
        outcome: Outcome = Requeue(_RETRY_S) if left else Done()
        return dict.fromkeys(keys, outcome)
