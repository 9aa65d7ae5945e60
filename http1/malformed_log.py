"""A server's log of malformed requests: what strangers send is one line a minute."""

import time
from collections.abc import Callable
from typing import Final

import structlog

_PERIOD_S: Final = 60.0

log = structlog.get_logger(__name__)


class MalformedLog:
    """Logs malformed requests: one line a minute, with the number of those held back.

    Args:
        name: of the server.
        monotonic: seconds that never go backwards.
    """

    def __init__(self, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._monotonic = monotonic
        self._logged_s = float("-inf")
        self._held_back = 0

    def note(self, detail: str) -> None:
        """One malformed request."""
        if self._monotonic() - self._logged_s < _PERIOD_S:
            self._held_back += 1
            return
        log.warning("malformed request", server=self._name, detail=detail, more_before=self._held_back)
        self._logged_s, self._held_back = self._monotonic(), 0
