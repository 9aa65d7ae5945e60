"""One finding of `gpuward doctor`."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warning", "fails"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str  # its subject, one word
    status: Status  # `fails`: an agent or its engines cannot work so; `warning`: they work, but not well
    message: str
    remedy: str = ""  # empty if nothing is to be done


def ok(check: str, message: str) -> Finding:
    return Finding(check, "ok", message)


def warning(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "warning", message, remedy)


def fails(check: str, message: str, remedy: str) -> Finding:
    return Finding(check, "fails", message, remedy)
