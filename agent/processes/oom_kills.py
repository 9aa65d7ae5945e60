"""How often the kernel has killed a process of this host for lack of memory.

It tells that end from any other kill where engines have no cgroup of their own, which counts exactly.
"""

from pathlib import Path
from typing import Final

_OF_THE_HOST: Final = Path("/proc/vmstat")


def oom_kills() -> int:
    """The kills since boot; 0 where the system does not count them."""
    try:
        lines = _OF_THE_HOST.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
