"""Keeps GPUs that Xids have condemned over restarts of the agent, until the host restarts or they are reset."""

from collections.abc import Mapping
from typing import Final

import structlog

from agent.state.host_state import Condemned
from agent.state.journal import Journal

_MOST_KEPT: Final = 256

log = structlog.get_logger()


class Verdicts:
    """Condemned GPUs in the journal; without a journal none are kept.

    `boot_id` is the host's. Verdicts of an earlier boot are forgotten: every GPU was reset since.
    """

    def __init__(self, journal: Journal | None = None, boot_id: str = "") -> None:
        self._journal = journal
        self._boot_id = boot_id

    def load(self) -> Mapping[str, Condemned]:
        """Verdicts of this boot, by UUID."""
        state = None if self._journal is None else self._journal.host_state
        return state.condemned if state is not None and state.condemned_boot_id == self._boot_id else {}

    def save(self, condemned: Mapping[str, Condemned]) -> None:
        """Replaces all verdicts; a change is written at once."""
        if self._journal is not None and (condemned or self._journal.host_state.condemned):
            kept = dict(list(condemned.items())[:_MOST_KEPT])
            self._journal.remember(condemned=kept, condemned_boot_id=self._boot_id)

    def newly_dismissed(self, dismissed: Mapping[str, int]) -> frozenset[str]:
        """The UUIDs whose number has risen since the last call, also over restarts of the agent."""
        if self._journal is None:
            return frozenset()
        known = self._journal.host_state.dismissed
        risen = frozenset(uuid for uuid, number in dismissed.items() if number > known.get(uuid, 0))
        if risen:
            self._journal.remember(dismissed=dict(dismissed))
            log.info("dismissed by an operator", gpus=sorted(risen))
        return risen
