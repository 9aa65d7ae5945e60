"""Log lines on stderr that fail nothing: the work continues although what reads them has ended, or the disk is full."""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, cast

import structlog

if TYPE_CHECKING:
    from structlog import WriteLoggerFactory


def stderr_logger() -> "WriteLoggerFactory":
    """Makes structlog's loggers of lines on stderr. What it cannot take is dropped."""
    return structlog.WriteLoggerFactory(stderr_lines())


def stderr_lines() -> "TextIO":
    """A file for lines on stderr. What stderr cannot take is dropped."""
    return cast("TextIO", _Lines(sys.stderr))


class _Lines:
    """A file for lines, none of which waits in a buffer."""

    def __init__(self, stream: TextIO | None) -> None:
        """`stream`: None where it was closed before this process began."""
        self._stream = stream

    def write(self, text: str) -> None:
        """Writes whole lines, past the stream's buffer: what that cannot write, it would raise again later."""
        stream = self._stream
        if stream is None:
            return
        with suppress(OSError, ValueError):  # ValueError: it is closed
            try:
                fd = stream.fileno()
            except OSError:  # it is a test's
                stream.write(text)
                return
            data = text.encode(stream.encoding, "backslashreplace")
            while data:
                data = data[os.write(fd, data) :]

    def flush(self) -> None:
        """Does nothing: see `write`."""
