"""The standard streams of a call: all three exist, and a failed write prints a line, not a traceback."""

import errno
import os
import sys
from io import BufferedWriter, RawIOBase, TextIOWrapper
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FAILED: Final = 1


def open_streams() -> None:
    """Opens the streams that the caller has closed, and replaces stdout and stderr.

    Each line is written at once, so that both streams into one file are in order. Characters that the locale's
    encoding lacks are written escaped.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, _empty(mode))
    sys.stdout = _writing(sys.stdout, _Stdout)
    sys.stderr = _writing(sys.stderr, _Stderr)


def go_on_without_stdout() -> None:
    """From now on drops output that stdout does not take, in place of ending the call."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Stdout):
        raw.needed = False


def _empty(mode: str) -> TextIOWrapper:
    """A stream on the lowest free descriptor, which is that of the closed stream."""
    fd = os.open(os.devnull, os.O_RDWR)
    os.set_inheritable(fd, True)  # as the standard ones are
    return TextIOWrapper(open(fd, f"{mode}b", closefd=False), encoding="utf-8")


class _Stream(RawIOBase):
    """Writes to a descriptor. Python's own stream raises errors in tasks or at exit, where they are not caught."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def write(self, data: "Buffer", /) -> int:
        while True:
            try:
                return os.write(self._fd, data)
            except BlockingIOError:  # another program has set this mode on a shared terminal or pipe
                self._wait()
            except OSError as error:
                self.lose(error)
                return memoryview(data).nbytes

    def lose(self, error: OSError) -> None:
        """Called after a failed write. The data is dropped, unless this raises."""

    def _wait(self) -> None:
        import select  # noqa: PLC0415 - few calls need it

        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        ready.poll()


class _Stderr(_Stream):
    """Messages, without which a call does its work."""


class _Stdout(_Stream):
    """Results: a call that cannot print them has failed, unless it is not `needed`."""

    needed = True

    def lose(self, error: OSError) -> None:
        """Ends the call by `SystemExit`, which no handler of errors catches. It is silent if the reader has gone."""
        if not self.needed:
            return
        null = os.open(os.devnull, os.O_WRONLY)  # for buffered output
        os.dup2(null, self._fd)
        os.close(null)
        if error.errno != errno.EPIPE:
            print(f"gpuward: stdout: {error.strerror}", file=sys.stderr)
        raise SystemExit(_FAILED)


def _writing(stream: object, kind: type[_Stream]) -> TextIOWrapper:
    if not isinstance(stream, TextIOWrapper):
        return stream  # type: ignore[return-value]  # a test's
    raw = kind(stream.fileno())
    return TextIOWrapper(BufferedWriter(raw), encoding=stream.encoding, errors="backslashreplace", line_buffering=True)
