"""A screen on a terminal that takes nothing for a while, as after Ctrl-S."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import ExitStack

import pytest

DRAWS = """
from cli.terminal.screen import Screen

with Screen() as screen:
    for number in range(400):
        screen.draw([f"{number:3} " + "x" * 70] * 10)
    screen.leave_behind(["drawn"])
"""
_QUIET_S = 0.5
_END_S = 30.0


@pytest.mark.parametrize(
    ("number", "code", "last"), [(signal.SIGTSTP, 0, b"drawn\r\n"), (signal.SIGTERM, 143, b"\x1b[?1049l")]
)
def test_a_signal_comes_while_a_picture_is_written(number, code, last):
    """The write that the signal interrupts holds the lock of stdout's buffer, where it goes through the buffer."""
    with ExitStack() as stack:
        ours, theirs = pty.openpty()
        stack.callback(os.close, ours)
        drawing = subprocess.Popen(
            [sys.executable, "-c", DRAWS], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, start_new_session=True,
            env={"PATH": os.environ["PATH"], "TERM": "xterm"},  # PYTHONUNBUFFERED would take the buffer away
        )  # fmt: skip
        os.close(theirs)
        stack.callback(drawing.kill)
        _until_blocked(ours)
        drawing.send_signal(number)
        time.sleep(_QUIET_S)
        taken = b""
        while part := _part(ours):
            taken += part
        _, error = drawing.communicate(timeout=_END_S)
        assert (drawing.returncode, error) == (code, b"")
        assert taken.endswith(last)


def _until_blocked(ours: int) -> None:
    """Returns when the process waits for the terminal to take more: it has written, and writes no more."""
    waiting = 0
    for _ in range(int(_END_S / _QUIET_S)):
        time.sleep(_QUIET_S)
        before, waiting = waiting, _waiting(ours)
        if waiting and waiting == before:
            return
    raise AssertionError("it has never waited for the terminal")


def _waiting(ours: int) -> int:
    """How many bytes can be read."""
    return struct.unpack("i", fcntl.ioctl(ours, termios.FIONREAD, b"\0\0\0\0"))[0]


def _part(ours: int) -> bytes:
    readable, _, _ = select.select([ours], [], [], _END_S)
    assert readable, "nothing has come"
    try:
        return os.read(ours, 65536)
    except OSError:  # the other end is closed
        return b""
