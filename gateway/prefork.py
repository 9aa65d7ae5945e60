"""Serves in forked children, and forks again where one dies: all modules are loaded, so it is back in milliseconds."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from gateway.lifeline import Holder, holder_of

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.2  # how late the end of the parent is seen
_AGAIN_S: Final = 0.1
_LONGEST_S: Final = 5.0
_LIVED_S: Final = 10.0
_SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)

Serve = Callable[[int, int], int]


@dataclass(slots=True)
class _Child:
    """One of the children, or the next one of its number. Times are seconds, monotonic."""

    number: int
    pid: int | None = None
    due: float = 0.0  # when it is forked
    began: float = 0.0
    delay_s: float = _AGAIN_S

    def ended(self, now: float) -> None:
        """It has: the next one is forked after a while."""
        self.delay_s = _AGAIN_S if now - self.began > _LIVED_S else min(self.delay_s * 2, _LONGEST_S)
        self.due = now + self.delay_s


def serve_forked(serve: Serve, count: int, *, parents: int | None) -> int:
    """Runs `serve` in so many children until SIGTERM or SIGINT, which is passed on; returns the worst exit code.

    Args:
        serve: called in a child with its number, from 0, and with a lifeline that this process holds. It runs until
            SIGTERM and returns the exit code.
        count: of the children.
        parents: a lifeline that the parent of this process holds; when that ends, all end at once. None: it has none.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    own = os.pipe()
    children = [_Child(number) for number in range(count)]
    while True:
        now = time.monotonic()
        for child in children:
            if child.pid is None and now >= child.due:
                child.pid, child.began = _fork(serve, child.number, own), now
        came = signal.sigtimedwait(_SIGNALS, _POLL_S if all(child.pid for child in children) else _AGAIN_S)
        if came is not None and came.si_signo != signal.SIGCHLD:
            return _stop(children, parents)
        for child, code in _reap(children):
            child.ended(time.monotonic())
            log.error("gateway died, starting it again", process=child.number + 1, exit_code=code, in_s=child.delay_s)
        if parents is not None and holder_of(parents) is Holder.ENDED:
            log.warning("the controller has ended, and its gateway ends with it")
            return _kill(children)


def _fork(serve: Serve, number: int, own: tuple[int, int]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.close(own[1])
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
