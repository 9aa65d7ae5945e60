"""Forks programs from a process that has imported Gpuward's daemons: their imports take a second of CPU each time.

Run as a program with the number of its end of a socket pair. A request is a JSON object, with the file descriptors of
the program's log and of a pipe. Into the pipe go the program's pid and, after its end, its exit code, each in four
bytes. A program runs as with `python -P -m`, as the leader of its own session. Only its entry in `/proc` differs:
command line and environment there are the server's. Programs that are left when the other end closes are named on
stdout, each in a line, and ended.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

from controller.api.app import all_routes
from schemas.version import __version__

_IMPORTED = ("cli.local.daemons", "controller.daemon", "agent.daemon", "gateway.daemon", "rig.simulated_args")
_REQUEST_BYTES = 2**17
_PROGRAMS_GO_WITHIN_S = 5.0


class _Program(NamedTuple):
    status: int  # the pipe of its exit code
    line: str


def _serve(requests: socket.socket) -> str:
    """Forks until the other end closes, which ends this process; returns in each child, with the module to run."""
    wakes, ended = socket.socketpair()
    for end in (wakes, ended):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended.fileno())
    running: dict[int, _Program] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wakes in ready:
                wakes.recv(_REQUEST_BYTES)
                _report_ends(running)
            if requests not in ready:
                continue
            body, descriptors, *_ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
            if not body:
                _end_left(running)
                raise SystemExit
            request = json.loads(body)
            log, status = descriptors
            pid = os.fork()
            if pid == 0:
                break
            os.write(status, pid.to_bytes(4, "little"))
            os.close(log)
            running[pid] = _Program(status, " ".join((request["module"], *request["argv"])))
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for descriptor in (log, status, *(program.status for program in running.values())):
        os.close(descriptor)
    for end in (wakes, ended, requests):
        end.close()
    return _become(request)


def _end_left(running: dict[int, _Program]) -> None:
    """Names the programs that do not end soon by themselves; ends them with what they started."""
    _wait(running)
    for pid, program in running.items():
        sys.stdout.write(f"{pid} {program.line}\n")
        os.kill(pid, signal.SIGTERM)
    _wait(running)
    for pid in running:
        os.killpg(pid, signal.SIGKILL)


def _wait(running: dict[int, _Program]) -> None:
    until = time.monotonic() + _PROGRAMS_GO_WITHIN_S
    _report_ends(running)
    while running and time.monotonic() < until:
        time.sleep(0.02)
        _report_ends(running)


def _report_ends(running: dict[int, _Program]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        pipe = running.pop(pid).status
        with suppress(BrokenPipeError):  # the tests have ended
            os.write(pipe, os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
        os.close(pipe)


def _become(request: dict[str, Any]) -> str:
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [request["module"], *request["argv"]]
    return str(request["module"])


if __name__ == "__main__":
    for name in _IMPORTED:
        import_module(name)
    all_routes(__version__)  # it is kept for each controller
    gc.collect()
    gc.freeze()
    # Outside of the server's functions: an exception ends the interpreter as it would that of the program.
    runpy.run_module(_serve(socket.socket(fileno=int(sys.argv[1]))), run_name="__main__", alter_sys=True)
