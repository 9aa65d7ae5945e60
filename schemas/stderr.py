"""Log lines on stderr that never fail: the work continues although their reader has ended, or the disk is full."""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO, cast

import structlog

if TYPE_CHECKING:
    from structlog import WriteLoggerFactory


def stderr_logger() -> "WriteLoggerFactory":
    """A factory of structlog's loggers of lines on stderr."""
    return structlog.WriteLoggerFactory(stderr_lines())


def stderr_lines() -> "TextIO":
    """A file for lines on stderr, which drops lines that stderr cannot take."""
    return cast("TextIO", _Lines(sys.stderr))


class _Lines:
    """An unbuffered file for lines."""

    def __init__(self, stream: TextIO | None) -> None:
        """`stream`: None if it was closed before this process started."""
        self._stream = stream

    def write(self, text: str) -> None:
        """Writes past the stream's buffer, which would raise again later for lines that it could not write."""
        stream = self._stream
        if stream is None:
            return
        with suppress(OSError, ValueError):  # ValueError: closed
            try:
                fd = stream.fileno()
            except OSError:  # a stream of tests
                stream.write(text)
                return
            data = text.encode(stream.encoding, "backslashreplace")
            while data:
                data = data[os.write(fd, data) :]

    def flush(self) -> None:
        """Does nothing: `write` is unbuffered."""
