"""Logs what ended requests: what many meet at once, such as a database that is away, once a minute."""

from typing import Final

import structlog

from gateway.errors import GatewayError
from http1.daemon.log_limit import LogLimit

log = structlog.get_logger(__name__)

_SERVER_ERROR: Final = 500
_OF_MANY: Final = ("unavailable", "overloaded")


class FailureLog:
    """The failed requests of one gateway process."""

    def __init__(self) -> None:
        self._limit = LogLimit()

    def note(self, error: GatewayError, path: bytes, request_id: str) -> None:
        """Logs one, unless the client's own mistake ended it or a line of its kind was written just now."""
        if error.status < _SERVER_ERROR:
            return
        more = self._limit.admit(error.code if error.code in _OF_MANY else f"{error.code} {error.message}")
        if more is not None:
            log.warning(
                "request failed",
                path=path.decode("latin-1"),
                status=error.status,
                error=error.message,
                request_id=request_id,
                more_before=more,
            )
