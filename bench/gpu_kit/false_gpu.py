"""A false GPU, for trying the check without a GPU. It shows the real processes that have that GPU.

The false library reads a file at each call; a thread writes it. A program of the check itself is shown with the
figures of its options. Any other process with the GPU in CUDA_VISIBLE_DEVICES is shown with its resident memory, and
with its processor time as utilization.
"""

import threading
import time
import uuid
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

import psutil

from gpu_kit.scenario import device, process

MEMORY_MIB: Final = 81559
_IDLE_MIB: Final = 500
_EVERY_S: Final = 0.2
_LEAST_MIB: Final = 20  # smaller processes are helpers that open no GPU
_BURN_STAND_IN: Final = "gpu_kit.burn_stand_in"
_SERVE_STAND_IN: Final = "gpu_kit.serve_stand_in"  # about as small as a helper, depending on the Python
_MIB: Final = 2**20
_FULL: Final = 100.0


class FalseGpu:
    """`env`: of the processes that may use the GPU. `library`: the folder of the false libnvidia-ml.so.1."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.uuid = f"GPU-{uuid.uuid4()}"
        self._file = folder / "false-nvml"
        self.env = {"LD_LIBRARY_PATH": str(library), "FALSE_NVML": str(self._file)}
        self._used_s: dict[int, tuple[float, float]] = {}
        self._write()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="false GPU", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(_EVERY_S):
            self._write()

    def _write(self) -> None:
        shown = self._processes()
        used = _IDLE_MIB + sum(memory for memory, _ in shown.values())
        values = {"mem": MEMORY_MIB, "used": int(used), "name": "NVIDIA_H100_80GB_HBM3", "cc": "9.0",
                  "util": int(min(_FULL, sum(percent for _, percent in shown.values())))}  # fmt: skip
        lines = ["driver 580.95.05", device("gpu", self.uuid, values)]
        lines += [process(self.uuid, pid, memory, percent) for pid, (memory, percent) in sorted(shown.items())]
        new = self._file.with_suffix(".new")
        new.write_text("\n".join([*lines, ""]))
        new.rename(self._file)

    def _processes(self) -> dict[int, tuple[float, float]]:
        shown = {}
        for user in psutil.process_iter():
            try:
                if user.environ().get("CUDA_VISIBLE_DEVICES") == self.uuid and user.status() != psutil.STATUS_ZOMBIE:
                    line = user.cmdline()
                    memory, percent = _from_options(line) or self._measured(user)
                    shown[user.pid] = max(memory, float(_LEAST_MIB)) if _SERVE_STAND_IN in line else memory, percent
            except (psutil.Error, OSError):
                continue
        self._used_s = {pid: used for pid, used in self._used_s.items() if pid in shown}
        return {pid: figures for pid, figures in shown.items() if figures[0] >= _LEAST_MIB}

    def _measured(self, user: psutil.Process) -> tuple[float, float]:
        now_s, times = time.monotonic(), user.cpu_times()
        used_s = times.user + times.system
        before = self._used_s.get(user.pid, (now_s - 1, used_s))
        self._used_s[user.pid] = (now_s, used_s)
        percent = _FULL * (used_s - before[1]) / max(now_s - before[0], 0.01)
        return user.memory_info().rss / _MIB, min(_FULL, percent)

    def close(self) -> None:
        self._ends.set()
        self._thread.join(10)


def _from_options(line: list[str]) -> tuple[float, float] | None:
    """Memory and duty of a program of the check; None: another program."""
    if _BURN_STAND_IN not in line:
        return None
    options: Mapping[str, str] = dict(pairwise(line))
    return float(options.get("--mib", 0)), float(options.get("--duty", 0))
