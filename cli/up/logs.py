"""The logs of `up`: everything goes to a rotating file, errors also to the terminal."""

import logging
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

import structlog

from schemas.printing import escape_log_event

_MAX_BYTES: Final = 16 * 1024 * 1024
_KEPT: Final = 3


def log_to(file: Path) -> None:
    """Writes the logs of this process to `file`, up to 16 MiB, and keeps three older files.

    Raises:
        OSError: the file is not writable.
    """
    to_file = RotatingFileHandler(file, maxBytes=_MAX_BYTES, backupCount=_KEPT, encoding="utf-8")
    to_terminal = logging.StreamHandler(sys.stderr)
    to_terminal.setLevel(logging.ERROR)
    logging.basicConfig(level=logging.INFO, handlers=[to_file, to_terminal], format="%(message)s", force=True)
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
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
