"""Serves in a forked child, and forks again where that dies: all modules are loaded, so it is back in milliseconds."""

import os
import signal
import time
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_POLL_S: Final = 0.2  # how late the end of the parent is seen
_AGAIN_S: Final = 0.1
_LONGEST_S: Final = 5.0
_LIVED_S: Final = 10.0
_SIGNALS: Final = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


def serve_forked(serve: Callable[[], int], *, with_parent: bool) -> int:
    """Runs `serve` in a child until SIGTERM or SIGINT, which is passed on; returns its exit code.

    Args:
        serve: runs until SIGTERM; returns the exit code.
        with_parent: whether to end, at once, when the parent of this process has ended.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parent = os.getppid()
    delay_s = _AGAIN_S
    while True:
        began = time.monotonic()
        child = _fork(serve)
        stopped = _watch(child, parent if with_parent else None)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if stopped:
            return max(code, 0)
        delay_s = _AGAIN_S if time.monotonic() - began > _LIVED_S else min(delay_s * 2, _LONGEST_S)
        log.error("gateway died, starting it again", exit_code=code, in_s=delay_s)
        if signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), delay_s) is not None:
            return 0


def _fork(serve: Callable[[], int]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        code = serve()
    except BaseException:
        log.exception("gateway failed")
    finally:
        os._exit(code)


def _watch(child: int, parent: int | None) -> bool:
    """Returns when the child has ended, or will: whether it was told to."""
    while True:
        came = signal.sigtimedwait(_SIGNALS, _POLL_S)
        if came is not None and came.si_signo != signal.SIGCHLD:
            os.kill(child, signal.SIGTERM)
            return True
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        if parent is not None and os.getppid() != parent:
            log.warning("the controller has ended, and its gateway ends with it")
            os.kill(child, signal.SIGKILL)
            return True
