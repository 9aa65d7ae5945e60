"""The logs of `up`: everything goes to a rotating file, errors also to the terminal."""

import logging
import sys
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

import structlog

from schemas.log_lines import RepeatedLines
from schemas.printing import escape_log_event
from schemas.stderr import stderr_lines

_MAX_BYTES: Final = 16 * 1024 * 1024
_KEPT: Final = 3


class _LogFile(RotatingFileHandler):
    """Drops lines on a full disk. The next line opens the file again."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name of the standard library
        # errors of the disk are not shown: they would repeat on the terminal for each line
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)
            return
        # the disk would refuse the buffer again with each line, and the buffer would grow
        stream, self.stream = self.stream, None  # as after its own `close`
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.close()


def log_to(file: Path) -> None:
    """Writes the logs of this process to `file`, up to 16 MiB, and keeps three older files. Raises `OSError`."""
    to_file = _LogFile(file, maxBytes=_MAX_BYTES, backupCount=_KEPT, encoding="utf-8")
    to_terminal = logging.StreamHandler(stderr_lines())
    to_terminal.setLevel(logging.ERROR)
    logging.basicConfig(level=logging.INFO, handlers=[to_file, to_terminal], format="%(message)s", force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            RepeatedLines(),
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            escape_log_event,
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
