"""Shared by the steps of a check: folders, the abilities of this host, and processes to end."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from gpu_kit.false_gpu import FalseGpu
from gpu_kit.model_shapes import FULL, SMALL, Shape
from gpu_kit.models import ModelMaker
from gpu_kit.nvml_reader import NvmlWatch
from gpu_kit.product import Product

_POLL_S: Final = 0.1
T = TypeVar("T")


class SkippedError(Exception):
    """A step cannot be tried here; the message has the reason."""


@dataclass(slots=True)
class Kit:
    """A run of the check."""

    results: Path  # the folder that remains; `logs` is in it until it is packed
    work: Path  # a temporary folder, which other accounts can enter
    engines: Path | None = None  # folder with the program `transformers`, and perhaps its interpreter
    engine_python: Path | None = None  # an interpreter with PyTorch
    false_library: Path | None = None  # folder of the false NVML; None: the real NVML
    small: bool = False  # tiny models
    stand_in: bool = False  # a stand-in for `transformers serve` instead of `engines`
    uuid: str = ""
    compute_capability: str = ""
    total_mib: float = 0.0
    false_gpu: FalseGpu | None = None
    burner: Path | None = None
    _watch: NvmlWatch | None = None
    _product: Product | None = None
    _models: ModelMaker | None = None
    _closing: list[Callable[[], None]] = field(default_factory=list)
    _burners: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def cuda(self) -> bool:
        """True for a GPU that programs can use, after NVML was read."""
        return self.false_library is None and bool(self.uuid)

    @property
    def logs(self) -> Path:
        return self.results / "logs"

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return SMALL if self.small else FULL

    @property
    def path(self) -> str:
        """The folder of this package. Other packages are in its environment, which other interpreters must not use."""
        return str(Path(__file__).resolve().parents[1])

    def env(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUWARD_")}
        kept["PYTHONPATH"] = self.path
        return kept | (self.false_gpu.env if self.false_gpu else {}) | more

    def begin(self) -> None:
        self.logs.mkdir(parents=True, exist_ok=True)
        if self.stand_in:
            self.engines = self._stand_in_engine()
        if self.false_library is not None:
            self.false_gpu = FalseGpu(self.work, self.false_library)
            self._closing.append(self.false_gpu.close)

    def _stand_in_engine(self) -> Path:
        folder = self.work / "engines"
        folder.mkdir()
        program = folder / "transformers"
        path, python = shlex.quote(self.path), shlex.quote(sys.executable)
        program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {python} -P -m gpu_kit.serve_stand_in "$@"\n')
        program.chmod(0o755)
        return folder

    @property
    def watch(self) -> NvmlWatch:
        """Samples of the GPU, from the first use on. Raises `SkippedError` if no GPU was found."""
        if not self.uuid:
            raise SkippedError("no GPU was read")
        if self._watch is None:
            self._watch = NvmlWatch(self.uuid, self.env())
            self._closing.append(self._watch.close)
        return self._watch

    @property
    def models(self) -> ModelMaker:
        if self._models is None:
            self._models = ModelMaker(self.work / "models", self.shapes)
        return self._models

    @property
    def product(self) -> Product:
        """The running product. Raises `SkippedError` if it did not start."""
        if self._product is None:
            raise SkippedError("Gpuward did not start")
        return self._product

    def has(self, product: Product) -> None:
        self._product = product
        self._closing.append(product.close)

    def burner_argv(self, **options: float) -> list[str]:
        """The command line of a program that holds memory and keeps the GPU busy; without CUDA of its stand-in."""
        words = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", f"{value:g}")]
        if self.burner is not None and self.cuda:
            return [str(self.burner), *words]
        if self.false_gpu is None:
            raise SkippedError("the CUDA program was not built")
        return [sys.executable, "-P", "-m", "gpu_kit.burn_stand_in", *words]

    def burn(self, **options: float) -> subprocess.Popen[str]:
        """Starts it outside the product, and waits until it holds its memory.

        Raises:
            RuntimeError: it ended, or was not ready in time.
        """
        process = subprocess.Popen(
            self.burner_argv(**options), env=self.env(CUDA_VISIBLE_DEVICES=self.uuid), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self._burners.append(process)
        if process.stdout is None:
            raise AssertionError("it was started with a pipe")
        # the line "ready", or an error before the pipe ends
        line = process.stdout.readline()
        if not line.startswith("ready"):
            raise RuntimeError(f"the CUDA program was not ready: {line.strip()} {process.stdout.read()}".strip())
        return process

    def quench(self, *processes: subprocess.Popen[str]) -> None:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
            if process.stdout is not None:
                process.stdout.close()
            if process in self._burners:
                self._burners.remove(process)

    def close(self) -> None:
        """Ends everything, in reverse order, also after errors."""
        if self._watch is not None:
            self._watch.write(self.logs / "nvml-samples.jsonl")
        for close in (lambda: self.quench(*self._burners), *reversed(self._closing)):
            try:
                close()
            except Exception as error:  # noqa: BLE001 - the rest must end, too
                with (self.logs / "not-ended.txt").open("a") as out:
                    out.write(f"{error!r}\n")


def until(poll: Callable[[], T], limit_s: float) -> T | None:
    """The first true result of `poll`; None: the time is over."""
    end = time.monotonic() + limit_s
    while not (result := poll()):
        if time.monotonic() >= end:
            return None
        time.sleep(_POLL_S)
    return result


def output_of(argv: Sequence[str], limit_s: float, **env: str) -> tuple[int, str]:
    """Exit code and output of a command; 127 where it does not exist, 124 after the time limit."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False,
            env=os.environ | env, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired as error:
        return 124, f"not within {limit_s:g} s: {error.output or ''}"
    return done.returncode, done.stdout + done.stderr
