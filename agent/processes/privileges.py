"""Capabilities of the agent, and starts of processes that gain none. Linux only."""

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

_SET_NO_NEW_PRIVS: Final = 38  # prctl(2)
_NEEDED: Final = {  # by bit, to run and supervise engines of another account
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_PTRACE": 19,
}  # fmt: skip

_NEEDED_TO_FETCH: Final = ("CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SETUID")

_Result = TypeVar("_Result")


def missing_capabilities(status: Path = Path("/proc/self/status")) -> tuple[str, ...]:
    """Capabilities that an agent lacks for running engines as another account."""
    lines = status.read_text(encoding="utf-8").splitlines()
    (held,) = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")]
    return tuple(name for name, bit in _NEEDED.items() if not held >> bit & 1)


def missing_for_fetches() -> tuple[str, ...]:
    """Capabilities that an agent of root lacks for fetching models as another account."""
    return tuple(name for name in missing_capabilities() if name in _NEEDED_TO_FETCH)


def become(uid: int, gid: int) -> None:
    """Irrevocably makes this process, with all threads, an account without capabilities and other groups.

    Raises OSError, also if the process is still root.
    """
    os.setgroups(())
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _set(_SET_NO_NEW_PRIVS, 1)
    if 0 in (*os.getresuid(), *os.getresgid()):
        raise PermissionError(errno.EPERM, "still runs as root")


def without_privileges(call: Callable[[], _Result]) -> _Result:
    """Runs `call` so that processes that it starts can never gain privileges, such as by programs of root. Blocks."""
    # In a thread of its own, since the setting is a thread's: children inherit it, and it ends with the thread.
    results: list[_Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            _set(_SET_NO_NEW_PRIVS, 1)
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, name="start without privileges")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _set(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
