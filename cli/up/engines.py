"""Last resort at the end of `up`: kills engines that their agents had no time to stop. Linux only (/proc)."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

_MARK: Final = b"GPUWARD_AGENT_DIR="  # in the environment of every process of an engine


def kill_engines(agents_dir: Path) -> int:
    """Sends SIGKILL to every process of an engine whose agent's folder lies in `agents_dir`; returns how many."""
    wanted = _MARK + os.fsencode(agents_dir) + b"/"
    killed = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            handle = os.pidfd_open(int(entry.name))  # held first: the number cannot change its owner under our hands
            try:
                if any(part.startswith(wanted) for part in (entry / "environ").read_bytes().split(b"\0")):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed += 1
            finally:
                os.close(handle)
    return killed
