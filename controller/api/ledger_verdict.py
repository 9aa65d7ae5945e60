"""What the last audit of the ledger found, as long as it counts.

The leader audits on a timer and writes an event where it finds something new. Only then the API audits too, so that an
entry goes once the ledger is mended. The event stays for weeks, and an audit reads all claims: its result is kept.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Final

from controller.store.core.audit import audit
from controller.store.core.database import Reader
from controller.store.views.attention import newest_violation

BROKEN_S: Final = 1.0  # a mended ledger shows within 2 s
WHOLE_S: Final = 60.0
SHARE: Final = 10  # an audit that took a second counts for ten


class LedgerVerdict:
    """The violations that were found last. One reader at a time."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._event: int | None = None  # the newest one at the last audit
        self._until = 0.0
        self._found: Sequence[str] = ()

    async def violations(self, connection: Reader) -> Sequence[str]:
        """What is broken, in words. The connection must be in one REPEATABLE READ transaction."""
        newest = await newest_violation(connection)
        if newest is None:
            return ()
        began = self._clock()
        if newest != self._event or began >= self._until:
            self._found = [violation.message for violation in (await audit(connection)).violations]
            self._event, now = newest, self._clock()
            self._until = now + max(BROKEN_S if self._found else WHOLE_S, SHARE * (now - began))
        return self._found
