"""The controller's heartbeat: the state of the connection, and the last message's time over agent restarts."""

from typing import Final

from agent.clock import Clock
from agent.state.journal import Journal

_SAVE_EVERY_S: Final = 2.0


class ControllerHeartbeat:
    """Age of the controller's last message. A restarted agent continues from the journal, so no fence gets longer."""

    def __init__(self, journal: Journal, clock: Clock, boot_id: str) -> None:
        state = journal.host_state
        saved_s = state.contact_s if state.contact_boot_id == boot_id else None
        self.connected = False  # a connection with a welcome exists
        self._journal = journal
        self._clock = clock
        self._boot_id = boot_id
        self._last_s = clock() if saved_s is None else saved_s
        self._saved_s = saved_s

    def received(self) -> None:
        self._last_s = self._clock()

    def silent_s(self) -> float:
        return self._clock() - self._last_s

    def save(self) -> None:
        """Journals the time of the last message; called while a process depends on it."""
        # A slightly old value is safe: the fence expires earlier.
        if self._saved_s is None or self._last_s - self._saved_s >= _SAVE_EVERY_S:
            self._journal.remember(contact_s=self._last_s, contact_boot_id=self._boot_id)
            self._saved_s = self._last_s
