"""The killable child's own side: sets limits, calls one function, writes one answer, exits.

An interpreter without `site` starts this file (see child.py), so it imports no module of ours and none that is slow:
the standard library's json takes a tenth of the import time of a faster one.

Usage: child_main.py EXPECTED_PARENT_PID MEMORY_BYTES MAX_RESULT_BYTES
Reads {"target", "payload", "path"} from stdin until its end. Writes a line break to stdout once it calls the loaded
target, then {"ok": ...} or {"error": {...}}.
"""

import ctypes
import importlib
import json
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
# Work that may take minutes yields to processes that answer in milliseconds: the controller and its database.
_NICENESS = 10
# How Python code would start another process. The kill of the group also ends those that bypass this.
_FORBIDDEN_EVENTS = frozenset({"os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen"})


def _die_with_parent(expected_parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that started it ends; exits now if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != expected_parent_pid:
        os._exit(1)


def _lower_priority() -> None:
    os.nice(_NICENESS)
    # Where the kernel schedules by session (autogroup), niceness counts within the session only, and this process is
    # alone in its session. So the group gets the niceness too. The kernel refuses frequent requests.
    try:
        group = os.open("/proc/self/autogroup", os.O_WRONLY)
        os.write(group, str(_NICENESS).encode())
        os.close(group)
    except OSError:  # no autogroups here, or too many requests
        return


def _lower_limit(which: int, wanted: int) -> None:
    """Sets a resource limit, soft and hard, at most to the inherited hard limit."""
    hard = resource.getrlimit(which)[1]
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(which, (limit, limit))


def _refuse_processes(event: str, _args: tuple[object, ...]) -> None:
    # PermissionError, because libraries that only probe for a program treat an OSError as "not installed".
    if event in _FORBIDDEN_EVENTS:
        raise PermissionError(f"{event}: a computation's child starts no processes")


def _take_channels() -> tuple[int, int]:
    """Keeps the pipes private: the target prints to stderr and reads an empty stdin."""
    request, answer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return request, answer


def _compute(request: dict[str, object], answer_fd: int) -> bytes:
    try:
        module, _, function = str(request["target"]).partition(":")
        call = getattr(importlib.import_module(module), function)
        os.write(answer_fd, b"\n")
        result = call(request["payload"])
        return json.dumps({"ok": result}, allow_nan=False).encode()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception of the target is its answer
        # A target's exception may have an attribute `retryable`. Without one, connection errors and timeouts are
        # retryable.
        retryable = getattr(error, "retryable", isinstance(error, ConnectionError | TimeoutError))
        detail = str(getattr(error, "detail", ""))  # for the log alone
        return _error_frame(type(error).__name__, str(error), retryable=bool(retryable), detail=detail)


def _error_frame(type_name: str, message: str, *, retryable: bool, detail: str = "") -> bytes:
    error = {"type": type_name, "message": message[:10_000], "retryable": retryable, "detail": detail[:10_000]}
    return json.dumps({"error": error}).encode()


def main(argv: list[str]) -> None:
    """Serves one request and exits without clean-up: threads of the target end with the process."""
    parent_pid, memory_bytes, max_result_bytes = (int(arg) for arg in argv[1:4])
    _die_with_parent(parent_pid)
    _lower_priority()
    _lower_limit(resource.RLIMIT_CORE, 0)
    _lower_limit(resource.RLIMIT_AS, memory_bytes)
    request_fd, answer_fd = _take_channels()
    with os.fdopen(request_fd, "rb") as pipe:
        request = json.loads(pipe.read())
    sys.path[:] = request["path"]
    sys.addaudithook(_refuse_processes)
    answer = _compute(request, answer_fd)
    if len(answer) > max_result_bytes:
        message = f"the result has {len(answer)} bytes, at most {max_result_bytes} are accepted: return less"
        answer = _error_frame("ResultTooLarge", message, retryable=False)
    sys.stdout.flush()
    with os.fdopen(answer_fd, "wb") as pipe:
        pipe.write(answer)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv)
