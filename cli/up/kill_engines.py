"""Last resort at the end of `up`: kills engines that their agents could not stop in time. Linux only (/proc)."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

_MARK: Final = b"GPUWARD_AGENT_DIR="  # in the environment of every process of an engine
_PARENT: Final = b"parent_main.py"  # in the arguments of an engine's parent
_SCANS: Final = 3  # several, since a process has no readable environment during its exec call
_BETWEEN_SCANS_S: Final = 0.02


def kill_engines(agents_dir: Path) -> int:
    """Sends SIGKILL to all engine processes of the agents in `agents_dir`; returns their number."""
    wanted = _MARK + os.fsencode(agents_dir) + b"/"
    killed = _kill_marked(wanted)
    for _ in range(_SCANS - 1):
        time.sleep(_BETWEEN_SCANS_S)
        killed |= _kill_marked(wanted)
    return len(killed)


def _kill_marked(wanted: bytes) -> set[int]:
    killed = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            handle = os.pidfd_open(int(entry.name))  # before the read, so that the pid cannot be reused
            try:
                if any(part.startswith(wanted) for part in (entry / "environ").read_bytes().split(b"\0")):
                    _excuse(entry)
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed.add(int(entry.name))
            finally:
                os.close(handle)
    return killed


def _excuse(engine: Path) -> None:
    """Makes the engine's parent record that the end was requested, so that it does not count as a crash."""
    with contextlib.suppress(OSError, ValueError):
        parent = int((engine / "stat").read_bytes().rpartition(b")")[2].split()[1])
        handle = os.pidfd_open(parent)
        try:
            if _PARENT in Path(f"/proc/{parent}/cmdline").read_bytes():
                signal.pidfd_send_signal(handle, signal.SIGTERM)
        finally:
            os.close(handle)
