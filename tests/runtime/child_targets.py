"""Targets that the tests run in children, which import them by name."""

import ctypes
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any


class BusyError(Exception):
    retryable = True


def echo(payload: Any) -> Any:
    return payload


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def announce_and_sleep(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


def fork_and_sleep(path: str) -> None:
    """Forks behind Python's back, as a native library might, and ignores every polite signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = ctypes.CDLL(None).fork()
    if child:
        Path(path).write_text(f"{os.getpid()} {child}")
    time.sleep(60)


def fork_and_crash(path: str) -> None:
    child = ctypes.CDLL(None).fork()
    if not child:
        os.closerange(0, 256)  # its answer's pipe too, else its end would not be seen
        time.sleep(60)
    Path(path).write_text(str(child))
    os._exit(7)


def surroundings(_: None) -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "sid": os.getsid(0),
        "parent": os.getppid(),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "memory": resource.getrlimit(resource.RLIMIT_AS)[0],
        "environment": sorted(os.environ),
        "modules": sorted(sys.modules),
        "cwd": str(Path.cwd()),
    }


def raise_busy(message: str) -> None:
    raise BusyError(message)


def raise_value(message: str) -> None:
    raise ValueError(message)


def raise_connection(message: str) -> None:
    raise ConnectionRefusedError(message)


def exit_loudly(code: int) -> None:
    sys.stderr.write("x" * 100_000 + "the end")
    sys.stderr.flush()
    os._exit(code)


def kill_self(_: None) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def print_much(n: int) -> str:
    print("noise " * n)  # noqa: T201 - it is the noise that is tested
    return sys.stdin.read()


def spawn(how: str) -> None:
    if how == "fork":
        os.fork()
    else:
        os.posix_spawn("/bin/true", ["true"], {})


def allocate(n: int) -> int:
    return len(bytearray(n))


def big(n: int) -> str:
    return "x" * n


def not_json(_: None) -> object:
    return float("nan")


def connect(address: list[Any]) -> None:
    socket.create_connection((address[0], address[1]), timeout=5).close()
