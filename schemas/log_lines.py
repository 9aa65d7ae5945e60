"""The log of a daemon: structured lines on stderr, for people or as JSON. A failure that repeats logs once a minute."""

import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import structlog

from schemas.database_disk import DATABASE_FULL_TEXT
from schemas.printing import escape_log_event
from schemas.stderr import stderr_logger

_LEVELS: Final = logging.getLevelNamesMapping()
EVERY_S: Final = 60.0  # of a repeated failure
MOST: Final = 1_000  # remembered lines
_VARYING: Final = frozenset(
    {"attempt", "retry_s", "restart_s", "waited_s", "more_before", "request_id", "reconcile_id"}
)
_TEXT: Final = 300  # characters of a field


class RepeatedLines:
    """A processor of structlog that drops repeated warnings about one failure.

    A warning with the event, error and objects of an earlier warning is dropped for a minute; the next then has their
    number as `repeated`. Warnings about single writes without disk space are always dropped: it has its own line.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lines: OrderedDict[tuple[Any, ...], tuple[float, int]] = OrderedDict()  # → when logged, dropped since

    def __call__(self, _logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """The line to log.

        Raises:
            structlog.DropEvent: the line is dropped.
        """
        if "error" not in event or event.get("exc_info"):
            return event
        if DATABASE_FULL_TEXT in str(event["error"]):
            raise structlog.DropEvent
        if method != "warning":
            return event
        line = tuple(sorted((key, str(value)[:_TEXT]) for key, value in event.items() if key not in _VARYING))
        now_s = self._monotonic()
        logged_s, dropped = self._lines.pop(line, (float("-inf"), 0))
        if again := now_s - logged_s < EVERY_S:
            self._lines[line] = logged_s, dropped + 1
        else:
            self._lines[line] = now_s, 0
            while len(self._lines) > MOST:
                self._lines.popitem(last=False)
        if again:
            raise structlog.DropEvent
        return {**event, "repeated": dropped} if dropped else event


def configure_logs(*, json: bool, level: str = "info", **everywhere: object) -> None:
    """Configures log lines on stderr: JSON, or for people, with colours on a terminal.

    `level`: minimum: debug, info, warning or error. `everywhere`: fields of each line, such as the process.
    """
    colours = sys.stderr is not None and sys.stderr.isatty()

    def with_fields(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        return {**event, **everywhere}

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            RepeatedLines(),
            *([with_fields] if everywhere else []),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            escape_log_event,
            structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=colours),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level.upper()]),
        logger_factory=stderr_logger(),
    )
