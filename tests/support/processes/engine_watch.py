"""Watches the engines below a folder through /proc, all the time: nothing may be started twice."""

import os
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

LOOK_S = 0.03
_YOUNG_S = 0.5  # a process without our mark by then has long called exec and is not ours
_STOP_S = 10.0


@dataclass(frozen=True, order=True)
class Start:
    """One start of one engine, as the mark in its environment names it."""

    instance: str
    epoch: int
    rank: int


class EngineWatch:
    """Reads /proc in a thread while the context lasts. Only session leaders count: engines may have children."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._first_seen: dict[int, float] = {}
        self._engines: dict[int, Start] = {}
        self._pids: dict[Start, set[int]] = defaultdict(set)
        self._doubled: set[str] = set()
        self._looks = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_STOP_S)

    def alive(self, deployment: str) -> dict[Start, int]:
        """Running engines of one deployment, with their pids."""
        found = {start: pid for pid, start in list(self._engines.items()) if _alive(pid)}
        return {start: pid for start, pid in found.items() if start.instance.rpartition("-")[0] == deployment}

    def pid(self, deployment: str) -> int | None:
        """The pid of a deployment's only engine; None where there are none or several."""
        pids = list(self.alive(deployment).values())
        return pids[0] if len(pids) == 1 else None

    def epochs(self, deployment: str) -> set[int]:
        """All epochs of a deployment that had a process."""
        return {start.epoch for start in list(self._pids) if start.instance.rpartition("-")[0] == deployment}

    def log_of(self, deployment: str) -> str:
        """The output of a deployment's engines so far."""
        logs = sorted(Path(self._folder).glob(f"agent-*/instances/{deployment}-*/logs/*.log"))
        return "".join(log.read_text(errors="replace") for log in logs)

    def check(self) -> None:
        """Checks that no start had two processes and no instance two at a time, by /proc and by the logs."""
        assert self._looks
        twice = {start: pids for start, pids in list(self._pids.items()) if len(pids) > 1}
        assert not twice, twice
        assert not self._doubled, self._doubled
        for log in Path(self._folder).glob("agent-*/instances/*/logs/*.log"):
            assert log.read_text().count("serving ") <= 1, log

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        now = time.monotonic()
        present = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208 - quick
        self._first_seen = {pid: self._first_seen.get(pid, now) for pid in present}
        self._engines = {pid: start for pid, start in self._engines.items() if pid in present}
        first = not self._looks
        for pid, since in self._first_seen.items():
            if pid not in self._engines and (first or now - since < _YOUNG_S):
                start = _mark(pid, self._folder)
                if start is not None:
                    self._engines = {**self._engines, pid: start}
                    self._pids[start].add(pid)
        self._note_doubled()
        self._looks += 1

    def _note_doubled(self) -> None:
        by_place: dict[tuple[str, int], list[int]] = defaultdict(list)
        for pid, start in self._engines.items():
            by_place[start.instance, start.rank].append(pid)
        for place, pids in by_place.items():
            if len(pids) > 1 and sum(_alive(pid) for pid in pids) > 1:
                self._doubled.add(f"{place}: {sorted((self._engines[pid].epoch, pid) for pid in pids)}")


def _mark(pid: int, folder: str) -> Start | None:
    try:
        if os.getsid(pid) != pid:
            return None
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # ended meanwhile
        return None
    env = dict(word.decode(errors="replace").partition("=")[::2] for word in words)
    if not env.get("GPUWARD_AGENT_DIR", "").startswith(folder) or "GPUWARD_INSTANCE" not in env:
        return None
    return Start(env["GPUWARD_INSTANCE"], int(env["GPUWARD_EPOCH"]), int(env["GPUWARD_RANK"]))


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"
