"""Reads GPUs by the agent's own NVML child: once, or periodically in a thread that keeps the samples."""

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

FIRST_LIMIT_S: Final = 20.0  # without persistence mode the driver initializes every GPU first
LIMIT_S: Final = 5.0
_END_S: Final = 5.0
_READ_BYTES: Final = 65536
_MOST_SAMPLES: Final = 4000
EVERY_S: Final = 0.25


class NvmlReaderError(Exception):
    """The child did not answer, or answered that NVML fails."""


class NvmlReader:
    """A child, `python -m agent.gpus.nvml`. It dies with the thread that starts it."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent.gpus.nvml", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(env) if env is not None else None,
        )
        self._left = b""
        self._limit_s = FIRST_LIMIT_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sample(self) -> dict[str, Any]:
        """All GPUs and their processes. Raises `NvmlReaderError` if there is no answer."""
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("the child was started with pipes")
        try:
            self._process.stdin.write(b"sample\n")
            self._process.stdin.flush()
        except OSError as error:
            raise NvmlReaderError("the process that reads NVML ended") from error
        answer = dict(json.loads(self._line(self._process.stdout.fileno())))
        self._limit_s = LIMIT_S
        if "fatal" in answer:
            raise NvmlReaderError(f"NVML fails: {answer['fatal']} (code {answer['code']})")
        return answer

    def _line(self, source: int) -> bytes:
        end = time.monotonic() + self._limit_s
        while b"\n" not in self._left:
            left_s = end - time.monotonic()
            if left_s <= 0 or not select.select([source], [], [], left_s)[0]:
                raise NvmlReaderError(f"NVML did not answer within {self._limit_s:g} s")
            part = os.read(source, _READ_BYTES)
            if not part:
                raise NvmlReaderError("the process that reads NVML ended")
            self._left += part
        line, _, self._left = self._left.partition(b"\n")
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.wait(_END_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@dataclass(frozen=True, slots=True)
class Sample:
    """A GPU at a time on the monotonic clock. None: unknown."""

    at_s: float
    used_mib: float | None = None
    percent: float | None = None
    memory_mib: Mapping[int, float | None] = field(default_factory=dict)  # by pid of each process that has the GPU open
    percents: Mapping[int, float] = field(default_factory=dict)  # by pid of each process that worked


def sample_of(answer: Mapping[str, Any], uuid: str, at_s: float) -> Sample:
    fields = next(gpu["fields"] for gpu in answer["gpus"] if gpu.get("uuid") == uuid)
    memory = fields.get("memory", {}).get("value")
    work = answer.get("work", {}).get(uuid, {"running": [], "memory_mib": {}, "percent": None})
    return Sample(
        at_s,
        used_mib=memory[1] if memory else None,
        percent=fields.get("utilization", {}).get("value"),
        memory_mib={int(pid): work["memory_mib"].get(str(pid)) for pid in work["running"]},
        percents={int(pid): float(value) for pid, value in (work.get("percent") or {}).items()},
    )


class NvmlWatch:
    """Samples a GPU four times a second, and keeps a quarter of an hour."""

    def __init__(self, uuid: str, env: Mapping[str, str] | None = None) -> None:
        self._uuid = uuid
        self._env = env
        self._samples: deque[Sample] = deque(maxlen=_MOST_SAMPLES)
        self._more = threading.Condition()
        self._ends = threading.Event()
        self.failures: deque[str] = deque(maxlen=20)
        self._thread = threading.Thread(target=self._run, name="NVML watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                with NvmlReader(self._env) as reader:
                    while not self._ends.wait(EVERY_S):
                        sample = sample_of(reader.sample(), self._uuid, time.monotonic())
                        with self._more:
                            self._samples.append(sample)
                            self._more.notify_all()
            except (NvmlReaderError, OSError, KeyError, StopIteration, ValueError) as error:
                self.failures.append(f"{time.monotonic():.1f}: {error!r}")
                self._ends.wait(1.0)

    def since(self, at_s: float) -> list[Sample]:
        with self._more:
            return [sample for sample in self._samples if sample.at_s >= at_s]

    def next_after(self, at_s: float, limit_s: float = LIMIT_S) -> Sample | None:
        """The first later sample; None: not within the limit."""
        with self._more:
            self._more.wait_for(lambda: bool(self._samples) and self._samples[-1].at_s > at_s, limit_s)
        return next(iter(self.since(at_s)), None)

    def next_listed(self, pids: Collection[int], after_s: float, limit_s: float = LIMIT_S) -> set[int]:
        """The processes that the driver lists in the first later sample with any of them; empty after the limit."""
        with self._more:
            self._more.wait_for(lambda: self.first_listed(pids, after_s) is not None, limit_s)
        return next((listed for s in self.since(after_s) if (listed := set(pids) & s.memory_mib.keys())), set())

    def last_listed(self, pids: Collection[int], since_s: float) -> float | None:
        """The time at which the driver last listed any of these processes; None: not since then."""
        listed = (sample.at_s for sample in self.since(since_s) if any(pid in sample.memory_mib for pid in pids))
        return max(listed, default=None)

    def first_listed(self, pids: Collection[int], since_s: float) -> float | None:
        """The time at which the driver first listed any of these processes; None: not yet."""
        return next((s.at_s for s in self.since(since_s) if any(pid in s.memory_mib for pid in pids)), None)

    def most_memory(self, pids: Collection[int], since_s: float) -> float | None:
        """The most that these processes held together; None: unknown."""
        sums = [
            sum(known)
            for sample in self.since(since_s)
            if (known := [mib for pid, mib in sample.memory_mib.items() if pid in pids and mib is not None])
        ]
        return max(sums, default=None)

    def write(self, file: Path) -> None:
        """Writes all samples, a line each."""
        with file.open("w") as out:
            for sample in self.since(0.0):
                row = {"at_s": round(sample.at_s, 3), "used_mib": sample.used_mib, "percent": sample.percent}
                out.write(json.dumps(row | {"memory_mib": sample.memory_mib, "percents": sample.percents}) + "\n")

    def close(self) -> None:
        self._ends.set()
        self._thread.join(FIRST_LIMIT_S + _END_S)
