"""aiohttp's log of a server: what strangers send is one line a minute, what is our own defect is logged whole."""

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

MALFORMED: Final = (HttpProcessingError, web.RequestPayloadError)
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


class ServerLog(logging.Logger):
    """Give it to a runner as `logger`.

    Args:
        name: of the server.
        monotonic: seconds that never go backwards.
    """

    def __init__(self, name: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        super().__init__(name)
        self._malformed = MalformedLog(name, monotonic)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **_: Any) -> None:
        """Logs an error of the server, as aiohttp calls it."""
        text = str(msg) % args if args else str(msg)
        if not isinstance(exc_info, MALFORMED):
            log.error(text, server=self.name, exc_info=exc_info)
        else:
            reason = str(exc_info).strip().partition("\n")[0]
            self._malformed.note(f"{text}: {reason!r}")
