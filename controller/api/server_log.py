"""aiohttp's log of a server: malformed requests are one line a minute, our own defects are logged with a traceback."""

import logging
import time
from typing import Any, Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from http1.daemon.log_limit import MalformedLog

MALFORMED: Final = (HttpProcessingError, web.RequestPayloadError)

log = structlog.get_logger(__name__)


class ServerLog(logging.Logger):
    """Pass it to a runner as `logger`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._malformed = MalformedLog(name, time.monotonic)

    def exception(self, msg: object, *args: object, exc_info: Any = True, **_: Any) -> None:
        text = str(msg) % args if args else str(msg)
        if not isinstance(exc_info, MALFORMED):
            log.error(text, server=self.name, exc_info=exc_info)
        else:
            reason = str(exc_info).strip().partition("\n")[0]
            self._malformed.note(f"{text}: {reason!r}")
