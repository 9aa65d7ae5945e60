"""One finding of `gpuward doctor`."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "fails"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found."""

    check: str  # what was looked at, one word
    status: Status  # `fails` where an agent or its engines cannot work so; `warning` where they work, but not well
    message: str  # what was found
    remedy: str = ""  # what to do; empty where nothing is


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", message)


def warning(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "warning", message, remedy)


def fails(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "fails", message, remedy)
