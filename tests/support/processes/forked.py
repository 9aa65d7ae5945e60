"""The tests' side of the fork server, and the programs that it forked, with the methods of `subprocess.Popen`."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_SERVER = Path(__file__).with_name("fork_server.py")
_END_S = 30.0  # it ends what is left


class ForkedProcess:
    """A program. Its parent is the server, so its end is read from a pipe."""

    def __init__(self, args: Sequence[str], status: int) -> None:
        self.args = args
        self.returncode: int | None = None
        self._status = status
        self.pid = self._number(signed=False)

    def poll(self) -> int | None:
        """The exit code, negative after a signal; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Nothing happens to a program that has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._readable(timeout):
            self.returncode = self._number(signed=True)
            os.close(self._status)
        return self.returncode

    def _readable(self, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(self._status, select.POLLIN)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def _number(self, *, signed: bool) -> int:
        data = os.read(self._status, 4)
        if len(data) < 4:
            raise RuntimeError("the fork server ended")
        return int.from_bytes(data, "little", signed=signed)


class ForkServer:
    """A running fork server."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests

    def start(self, module: str, argv: Sequence[str], env: Mapping[str, str], log: BinaryIO) -> ForkedProcess:
        """Runs a module of this version with all of its environment; its output goes to the log."""
        request = {"module": module, "argv": argv, "env": dict(env), "cwd": str(Path.cwd())}
        reads, writes = os.pipe()
        try:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [log.fileno(), writes])
        finally:
            os.close(writes)
        return ForkedProcess((module, *argv), reads)


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    """Starts a server; ends it with its programs.

    Raises:
        AssertionError: programs were left running; names them.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GPUWARD_")}
    with (
        ours,
        subprocess.Popen(
            [sys.executable, "-P", str(_SERVER), str(theirs.fileno())],
            env={**clean, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        theirs.close()
        try:
            yield ForkServer(ours)
        finally:
            ours.close()
            left, _ = process.communicate(timeout=_END_S)
    if left:
        raise AssertionError(f"left running by tests:\n{left}")
