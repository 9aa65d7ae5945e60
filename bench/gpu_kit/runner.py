"""Runs steps one after another, each within its budget, and writes the results after each."""

import json
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpu_kit.kit import Kit, SkippedError
from gpu_kit.results import Finding, Status, StepResult, as_json, exit_code, skipped, summary

_LEAST_S: Final = 3.0


class _OverError(BaseException):
    """The time of a step is over. No step catches it by mistake."""


@dataclass(frozen=True, slots=True)
class Step:
    """`budget_s`: the longest time that the step may take."""

    name: str
    budget_s: float
    run: Callable[[Kit], Iterator[Finding]]


class Runner:
    """`end_s`: on the monotonic clock, when the last step must have ended."""

    def __init__(self, kit: Kit, about: Mapping[str, Any], end_s: float) -> None:
        self._kit = kit
        self._about = dict(about)
        self._end_s = end_s
        self.results: list[StepResult] = []

    def run(self, steps: Sequence[Step]) -> int:
        for step in steps:
            result = StepResult(step.name, step.budget_s)
            self.results.append(result)
            began = time.monotonic()
            limit_s = min(step.budget_s, self._end_s - began)
            if limit_s < _LEAST_S:
                result.findings.append(skipped(step.name, "no time was left"))
            else:
                self._step(step, result, limit_s)
            result.seconds = time.monotonic() - began
            self.write()
        return exit_code(self.results)

    def _step(self, step: Step, result: StepResult, limit_s: float) -> None:
        add = result.findings.append
        try:
            with _within(limit_s):
                for finding in step.run(self._kit):
                    add(finding)
        except _OverError:
            add(Finding("time", Status.TIMED_OUT, f"cut off after {limit_s:.0f} s", detail=traceback.format_exc()))
        except SkippedError as error:
            add(skipped(step.name, str(error)))
        except Exception as error:  # noqa: BLE001 - the next step is tried after any error
            add(Finding("unexpected", Status.ERROR, repr(error)[:200], detail=traceback.format_exc()))

    def write(self) -> None:
        folder = self._kit.results
        _replace(folder / "results.json", json.dumps(as_json(self.results, self._about), indent=1, default=str))
        _replace(folder / "summary.txt", summary(self.results, self._about))


def _replace(file: Path, text: str) -> None:
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.rename(file)


@contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """Raises _OverError in this thread, which must be the main one, once the time is over."""

    def over(*_: object) -> None:
        raise _OverError

    handler = signal.signal(signal.SIGALRM, over)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
