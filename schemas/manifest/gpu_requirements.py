"""What a manifest requires of GPUs: parts of model names, and bounds of the compute capability."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

Capability = tuple[int, int]
_NONE: Final = "none"
_BOUND: Final = re.compile(r"\s*(>=|<=|==|>|<)\s*(\d{1,3})(?:\.(\d{1,3}))?\s*")
_BLANKS: Final = re.compile(r"[\s\-_]+")
_MAX_BOUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class CapabilityBound:
    """One bound, such as `>= 8.0`."""

    relation: str
    version: Capability

    def allows(self, capability: Capability | None) -> bool:
        """Whether a GPU of this compute capability is within the bound. An unknown one is not."""
        if capability is None:
            return False
        return {
            ">=": capability >= self.version,
            "<=": capability <= self.version,
            "==": capability == self.version,
            ">": capability > self.version,
            "<": capability < self.version,
        }[self.relation]

    def __str__(self) -> str:
        return f"{self.relation}{self.version[0]}.{self.version[1]}"


def capability_bounds(text: str) -> tuple[CapabilityBound, ...]:
    """The bounds in a text such as `>=8.0,<9.0`; none for `none`.

    Raises:
        ValueError: not valid, or no compute capability is within all bounds.
    """
    if text == _NONE:
        return ()
    matches = [_BOUND.fullmatch(part) for part in text.split(",")]
    if len(matches) > _MAX_BOUNDS or not all(matches):
        raise ValueError(f'{text!r} is not a valid requirement; write for example ">=8.0", "==9.0" or ">=8.0,<9.0"')
    bounds = tuple(CapabilityBound(m[1], (int(m[2]), int(m[3] or 0))) for m in matches if m is not None)
    # Minor versions are whole numbers, so one just above or below a bound stands for all others.
    near = [(major, minor + step) for major, minor in (one.version for one in bounds) for step in (-1, 0, 1)]
    if not any(all(one.allows(version) for one in bounds) for version in near):
        raise ValueError(f"{text!r} contradicts itself: no GPU can meet it")
    return bounds


def compute_capability_text(text: str) -> str:
    """The text itself, if it is valid."""
    capability_bounds(text)
    return text


def gpu_model_text(text: str) -> str:
    """The text itself, if it names anything.

    Raises:
        ValueError: it has neither a letter nor a digit.
    """
    if not re.search(r"[^\W_]", text):
        raise ValueError(f"{text!r} is not a valid part of a GPU's name; write for example H100")
    return text


def matches_model(model: str, parts: Iterable[str]) -> bool:
    """Whether a GPU's name contains one of these parts. Case does not matter, and blanks and dashes are alike.

    A part begins where a word begins, and never ends within a number: `A10` is not part of `NVIDIA A100`.
    """
    name = _canonical(model)
    return any(re.search(rf"(?<![^\W_]){re.escape(_canonical(part))}(?!(?<=\d)\d)", name) for part in parts)


def _canonical(text: str) -> str:
    return _BLANKS.sub(" ", text).strip().lower()
