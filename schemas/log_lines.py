"""The log of a daemon: structured lines on stderr, for people or as JSON."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from schemas.printing import escape_log_event
from schemas.repeated_lines import RepeatedLines
from schemas.stderr import stderr_logger

_LEVELS: Final = logging.getLevelNamesMapping()


def configure_logs(*, json: bool, level: str = "info", **everywhere: object) -> None:
    """Writes log lines to stderr from now on.

    Args:
        json: one JSON object a line; else for people, with colours on a terminal.
        level: the least that is logged: debug, info, warning or error.
        everywhere: fields of each line, such as which process writes it.
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
