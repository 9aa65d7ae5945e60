"""Watches one controller's computations from another process, which reads /proc every ten milliseconds.

Usage: python proc_watch.py CONTROLLER_PID FILE; it ends when its stdin closes. A line of FILE is a change: monotonic
seconds, then the existing pids. The last line is the longest pause between two readings.
"""

import asyncio
import select
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_S = 0.01
_SETTLED_S = 1.0  # a process that does not compute by then never will: it has long called exec
_START_S = 30.0


@dataclass(frozen=True)
class Sightings:
    """(monotonic seconds, existing pids) at each change."""

    changes: list[tuple[float, frozenset[int]]]
    longest_pause_s: float

    @property
    def peak(self) -> int:
        """The most at one time."""
        return max((len(pids) for _, pids in self.changes), default=0)

    def lasted_s(self, since: float, until: float) -> float:
        """Seconds after `since` until the last one from before `until` was gone; 0 without any."""
        ends = [*(at for at, _ in self.changes[1:]), float("inf")]
        seen = [end for (at, pids), end in zip(self.changes, ends, strict=True) if pids and at < until and end > since]
        return min(max(seen, default=since), until) - since


class ProcWatch:
    """Runs the watcher for as long as the context lasts."""

    def __init__(self, controller_pid: int, file: Path) -> None:
        self._pid = controller_pid
        self._file = file
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", __file__, str(self._pid), str(self._file), stdin=asyncio.subprocess.PIPE
        )
        give_up = time.monotonic() + _START_S
        while not self._file.exists():
            assert time.monotonic() < give_up, "the watcher does not start"
            await asyncio.sleep(LOOK_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with asyncio.timeout(_START_S):
            await self._process.wait()

    def sightings(self) -> Sightings:
        """All changes; available after the context has ended."""
        *lines, pause = self._file.read_text().splitlines()
        changes = []
        for line in lines:
            at, *pids = line.split()
            changes.append((float(at), frozenset(map(int, pids))))
        return Sightings(changes, float(pause))


def _watch(controller: str, file: Path) -> None:
    first_seen: dict[int, float] = {}
    computations: set[int] = set()
    shown: frozenset[int] | None = None
    longest, last = 0.0, time.monotonic()
    with file.open("w", buffering=1) as out:
        while not select.select([sys.stdin], [], [], LOOK_S)[0]:
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            present = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()}
            first_seen = {pid: first_seen.get(pid, now) for pid in present}
            computations &= present  # a zombie exists until it is reaped
            young = {pid for pid, since in first_seen.items() if now - since < _SETTLED_S}
            computations |= {pid for pid in young - computations if _computes(pid, controller)}
            if computations != shown:
                shown = frozenset(computations)
                out.write(" ".join([f"{now:.6f}", *map(str, sorted(shown))]) + "\n")
        out.write(f"{longest:.6f}\n")


def _computes(pid: int, controller: str) -> bool:
    """Whether its command line names the controller that started it; so orphans are found as well."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # ended meanwhile
        return False
    return any("child_main" in word for word in argv) and controller in argv


if __name__ == "__main__":
    _watch(sys.argv[1], Path(sys.argv[2]))
