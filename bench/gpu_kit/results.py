"""The results of a check: statuses, figures, the summary, and the exit code. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

_NAME_WIDTH: Final = 44
_MOST_MESSAGE: Final = 400
_MOST_DETAIL: Final = 4000


class Status(StrEnum):
    """Of a finding. Only `failed`, `error` and `timed out` make the check fail."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"
    TIMED_OUT = "timed out"
    NOTED = "noted"


BAD: Final = frozenset({Status.FAILED, Status.ERROR, Status.TIMED_OUT})
NO_CUDA: Final = "no CUDA"


@dataclass(frozen=True, slots=True)
class Finding:
    """A result."""

    name: str  # unique within its step
    status: Status
    message: str = ""  # a line for a reader
    figures: Mapping[str, Any] = field(default_factory=dict)  # measurements; keys have their units
    detail: str = ""  # further text, such as a traceback


def judged(name: str, holds: bool, message: str = "", **figures: Any) -> Finding:
    return Finding(name, Status.PASSED if holds else Status.FAILED, message, figures)


def noted(name: str, message: str = "", **figures: Any) -> Finding:
    return Finding(name, Status.NOTED, message, figures)


def skipped(name: str, why: str, **figures: Any) -> Finding:
    return Finding(name, Status.SKIPPED, f"skipped: {why}", figures)


@dataclass(slots=True)
class StepResult:
    """A step. Its findings are added while it runs, so that a step that is cut off keeps them."""

    name: str
    budget_s: float
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """The worst of its findings; skipped only if all were."""
        found = {finding.status for finding in self.findings}
        for bad in (Status.ERROR, Status.TIMED_OUT, Status.FAILED):
            if bad in found:
                return bad
        return Status.SKIPPED if found == {Status.SKIPPED} else Status.PASSED


def exit_code(steps: Iterable[StepResult]) -> int:
    return int(any(step.status in BAD for step in steps))


def as_json(steps: Sequence[StepResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """All results for programs. `about`: host and time."""
    listed = [
        {"name": step.name, "status": str(step.status), "seconds": round(step.seconds, 1), "budget_s": step.budget_s,
         "findings": [asdict(finding) | {"status": str(finding.status)} for finding in step.findings]}
        for step in steps
    ]  # fmt: skip
    return {"about": dict(about), "failed": bool(exit_code(steps)), "counts": counts(steps), "steps": listed}


def counts(steps: Iterable[StepResult]) -> dict[str, int]:
    numbers = Counter(str(finding.status) for step in steps for finding in step.findings)
    return dict(sorted(numbers.items()))


def summary(steps: Sequence[StepResult], about: Mapping[str, Any]) -> str:
    """All results for people: a line for each step, and below it a line for each finding."""
    lines = [f"{key}: {value}" for key, value in about.items()]
    for step in steps:
        lines += ["", f"{step.name}  [{step.status}, {step.seconds:.1f} of {step.budget_s:g} s]"]
        lines += [line for finding in step.findings for line in _lines(finding)]
    total = sum(step.seconds for step in steps)
    numbers = ", ".join(f"{number} {status}" for status, number in counts(steps).items())
    return "\n".join([*lines, "", f"{numbers}; {total:.0f} s", ""])


def _lines(finding: Finding) -> list[str]:
    figures = ", ".join(f"{key}={_short(value)}" for key, value in finding.figures.items())
    words = "; ".join(part for part in (finding.message, figures) if part)
    first = f"  {finding.status:<9} {finding.name:<{_NAME_WIDTH}} {words[:_MOST_MESSAGE]}".rstrip()
    detail = finding.detail.strip()[-_MOST_DETAIL:] if finding.status in BAD else ""
    return [first, *(f"            {line}" for line in detail.splitlines())]


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return str(value)
