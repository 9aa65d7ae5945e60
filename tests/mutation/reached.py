"""A plugin of pytest that records which functions of the mutated rooms each test enters.

With pytest-xdist each worker writes a file of its own. `GPUWARD_MUTATION_REACHED` names the folder,
`GPUWARD_MUTATION_ROOMS` the rooms, as paths from the root.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = tuple(f"{_ROOT / room}/" for room in os.environ["GPUWARD_MUTATION_ROOMS"].split())
_FOLDER = Path(os.environ["GPUWARD_MUTATION_REACHED"])


class Reached:
    """Each passed test with its seconds and the functions that it entered, as `path:qualified name`."""

    def __init__(self) -> None:
        self.tests: dict[str, tuple[float, list[str]]] = {}
        self._entered: set[CodeType] = set()
        self._failed = False

    def _trace(self, frame: FrameType, event: str, argument: Any) -> None:  # noqa: ARG002
        code = frame.f_code
        if code.co_filename.startswith(_ROOMS):
            self._entered.add(code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Traces one test with its fixtures."""
        self._entered, self._failed = set(), False
        started = time.monotonic()
        threading.settrace(self._trace)
        sys.settrace(self._trace)
        try:
            answer = yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
        if self._entered and not self._failed:
            names = sorted({_name(code) for code in self._entered})
            self.tests[item.nodeid] = (time.monotonic() - started, names)
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test that fails or is skipped without a mutant kills none."""
        self._failed = self._failed or report.outcome != "passed"

    def pytest_sessionfinish(self) -> None:
        """Writes what this process has seen."""
        if self.tests:
            worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
            (_FOLDER / f"{worker}.json").write_text(json.dumps(self.tests), encoding="utf-8")


def _name(code: CodeType) -> str:
    name = code.co_qualname.replace(".<locals>", "")
    while name.endswith((".<lambda>", ".<genexpr>", ".<listcomp>", ".<dictcomp>", ".<setcomp>")):
        name = name.rpartition(".")[0]
    return f"{Path(code.co_filename).relative_to(_ROOT)}:{name}"


def pytest_configure(config: pytest.Config) -> None:
    """Adds the plugin."""
    config.pluginmanager.register(Reached())
