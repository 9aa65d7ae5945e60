"""Serves in forked children, and forks again where one dies: all modules are loaded, so it is back in milliseconds."""

import math
import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.lifecycle.parent_pipe import Holder, die_with, holder_of, outlive_parent

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.2  # how late the end of the parent is noticed
_AGAIN_S: Final = 0.1
_LONGEST_S: Final = 5.0
_LIVED_S: Final = 10.0
_SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)
_LEAVES_S: Final = 5.0  # the longest wait for a child to leave its socket

Serve = Callable[[int, int], int]


@dataclass(slots=True)
class _Child:
    """One of the children, or the next one of its number. Times are seconds, monotonic."""

    number: int
    pid: int | None = None
    due: float = 0.0  # when it is forked
    started: float = 0.0
    delay_s: float = _AGAIN_S

    def ended(self, now: float) -> None:
        """Forks the next child of this number after a delay."""
        self.delay_s = _AGAIN_S if now - self.started > _LIVED_S else min(self.delay_s * 2, _LONGEST_S)
        self.due = now + self.delay_s


class Handover:
    """How children drain after their parent's end, while its successor serves the socket that a service manager holds.

    At SIGTERM the parent passes that on, waits until each child has left the socket, and ends. The children
    continue until their answers are complete. A child that does not leave in time, since it hangs, is killed.
    """

    def __init__(self) -> None:
        self._left = os.pipe()

    def enter_child(self, parent: int) -> None:
        """In a child: it dies with its parent until it has left."""
        die_with(parent)

    def leave(self, number: int) -> None:
        """In a child: it takes no more connections, and outlives its parent."""
        outlive_parent()
        os.write(self._left[1], bytes([number]))

    def complete(self, children: "list[_Child]") -> None:
        """In the parent: passes SIGTERM on, and returns when all children have left or ended."""
        for child in children:
            if child.pid is not None:
                os.kill(child.pid, signal.SIGTERM)
        left = set[int]()
        for _ in range(math.ceil(_LEAVES_S / _AGAIN_S)):  # in ticks: a clock would count while this process is stopped
            _reap(children)
            if all(child.pid is None or child.number in left for child in children):
                return
            if select.select([self._left[0]], [], [], _AGAIN_S)[0]:
                left.update(os.read(self._left[0], len(children)))
        for child in children:
            if child.pid is not None and child.number not in left:
                log.error("gateway did not leave its socket in time, and is killed", process=child.number + 1)
                os.kill(child.pid, signal.SIGKILL)


def serve_forked(serve: Serve, count: int, *, parents: int | None, handover: Handover | None = None) -> int:
    """Runs `serve` in `count` children until SIGTERM or SIGINT, which is passed on; returns the worst exit code.

    Args:
        serve: called in a child with its number, from 0, and with a pipe that this process holds. It runs until
            SIGTERM and returns the exit code.
        count: the number of children.
        parents: the pipe that the parent of this process holds; when it ends, all end at once. None without one.
        handover: lets the children drain after this process; None: it waits for them.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    own = os.pipe()
    children = [_Child(number) for number in range(count)]
    while True:
        now = time.monotonic()
        for child in children:
            if child.pid is None and now >= child.due:
                child.pid, child.started = _fork(serve, child.number, own, handover), now
        came = signal.sigtimedwait(_SIGNALS, _POLL_S if all(child.pid for child in children) else _AGAIN_S)
        if came is not None and came.si_signo != signal.SIGCHLD:
            if handover is not None:
                handover.complete(children)
                return 0
            return _stop(children, parents)
        for child, code in _reap(children):
            child.ended(time.monotonic())
            log.error("gateway died, starting it again", process=child.number + 1, exit_code=code, in_s=child.delay_s)
        if parents is not None and holder_of(parents) is Holder.ENDED:
            log.warning("the controller has ended, and its gateway ends with it")
            return _kill(children)


def _fork(serve: Serve, number: int, own: tuple[int, int], handover: Handover | None) -> int:
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.close(own[1])
        if handover is not None:
            handover.enter_child(parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = serve(number, own[0])
    except BaseException:
        log.exception("gateway failed")
    finally:
        os._exit(code)


def _reap(children: list[_Child]) -> list[tuple[_Child, int]]:
    """The children that have ended since the last call, with their exit codes."""
    reaped = []
    for child in children:
        if child.pid is None:
            continue
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            child.pid = None
            reaped.append((child, os.waitstatus_to_exitcode(status)))
    return reaped


def _stop(children: list[_Child], parents: int | None) -> int:
    """Passes SIGTERM on and waits for all: they have a limit of their own."""
    for child in children:
        if child.pid is not None:
            os.kill(child.pid, signal.SIGTERM)
    worst = 0
    while any(child.pid is not None for child in children):
        signal.sigtimedwait(_SIGNALS, _POLL_S)
        for _child, code in _reap(children):
            worst = max(worst, code if code >= 0 else 1)
        if parents is not None and holder_of(parents) is Holder.ENDED:
            return _kill(children)
    return worst


def _kill(children: list[_Child]) -> int:
    for child in children:
        if child.pid is not None:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
    return 0
