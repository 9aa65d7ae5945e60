"""Last resort at the end of `up`: kills engines that their agents had no time to stop. Linux only (/proc)."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

_MARK: Final = b"GPUWARD_AGENT_DIR="  # in the environment of every process of an engine
# A process shows no environment for a moment while it executes its program, so one look is not enough.
_LOOKS: Final = 3
_BETWEEN_LOOKS_S: Final = 0.02


def kill_engines(agents_dir: Path) -> int:
    """Sends SIGKILL to every process of an engine whose agent's folder lies in `agents_dir`; returns how many."""
    wanted = _MARK + os.fsencode(agents_dir) + b"/"
    killed = _kill_marked(wanted)
    for _ in range(_LOOKS - 1):
        time.sleep(_BETWEEN_LOOKS_S)
        killed |= _kill_marked(wanted)
    return len(killed)


def _kill_marked(wanted: bytes) -> set[int]:
    killed = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            handle = os.pidfd_open(int(entry.name))  # held first: the number cannot change its owner under our hands
            try:
                if any(part.startswith(wanted) for part in (entry / "environ").read_bytes().split(b"\0")):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed.add(int(entry.name))
            finally:
                os.close(handle)
    return killed
