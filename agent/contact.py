"""Whether a controller is there: the connection now, and the last word heard, across the agent's restarts."""

from typing import Final

from agent.clock import Clock
from agent.journal import Journal

_KEEP_EVERY_S: Final = 2.0


class Contact:
    """The last word of a controller. A restarted agent counts from the journal, so that a fence is never stretched.

    Attributes:
        connected: whether a connection stands on which the controller has welcomed this agent.
    """

    def __init__(self, journal: Journal, clock: Clock, boot_id: str) -> None:
        facts = journal.facts
        known = facts.contact_s if facts.contact_boot_id == boot_id else None
        self.connected = False
        self._journal = journal
        self._clock = clock
        self._boot_id = boot_id
        self._heard_s = clock() if known is None else known
        self._kept_s = known

    def heard(self) -> None:
        """A message has just arrived."""
        self._heard_s = self._clock()

    def silent_s(self) -> float:
        """Seconds since the last message."""
        return self._clock() - self._heard_s

    def keep(self) -> None:
        """Journals it; called while a process depends on it. Kept a little late it errs to the safe side: earlier."""
        if self._kept_s is None or self._heard_s - self._kept_s >= _KEEP_EVERY_S:
            self._journal.remember(contact_s=self._heard_s, contact_boot_id=self._boot_id)
            self._kept_s = self._heard_s
