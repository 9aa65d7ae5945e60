"""The engine's behaviour while it answers: by its arguments, or by a prompt that overrides them.

A prompt sets it between brackets, anywhere: `[simulate tokens=20 token_seconds=0.05 wait=1 die=5]`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from rig.engine.errors import BadRequestError

_MARK: Final = "[simulate"
_SETTINGS: Final = re.compile(r"\[simulate\b([^\]]*)\]")
MAX_TOKENS: Final = 10_000_000
_MAX_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Times are in seconds. `die`, `cut` and `silent` are numbers of tokens after which it happens; None: never."""

    tokens: int | None = None  # of the answer; None: as many as the request allows
    token_seconds: float = 0.0
    token_bytes: int = 0  # tokens are filled up to this size
    wait: float = 0.0  # before the first byte
    refuse: int | None = None  # with this status
    die: int | None = None  # the process
    cut: int | None = None  # the connection alone
    silent: int | None = None
    hang: bool = False  # the engine generates nothing from here on, while its port answers
    usage: bool = True
    cached: int | None = None  # tokens of the prompt that usage calls cached
    gzip: bool = False  # where the client accepts it
    id: str = ""  # the request's name in the journal

    def steered_by(self, prompt: str) -> "Behaviour":
        """This behaviour with the settings of the prompt. Raises BadRequestError for unknown ones."""
        if _MARK not in prompt or (match := _SETTINGS.search(prompt)) is None:
            return self
        return replace(self, **dict(_setting(word) for word in match[1].split()))


def _setting(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    read = _READERS.get(name)
    if read is None:
        raise BadRequestError("simulate", f"simulate: unknown word {name!r}; known: {', '.join(_READERS)}")
    try:
        return name, read(text if equals else None)
    except (TypeError, ValueError):
        raise BadRequestError("simulate", f"simulate: {name}: invalid value, got {word!r}") from None


def _number(low: int, high: int) -> Callable[[str | None], int]:
    def read(text: str | None) -> int:
        number = int(text or "")
        if not low <= number <= high:
            raise ValueError(text)
        return number

    return read


def _after(text: str | None) -> int:
    """Number of tokens; without a number at once."""
    return 0 if text is None else _number(0, MAX_TOKENS)(text)


def _seconds(text: str | None) -> float:
    seconds = float(text or "")
    if not 0 <= seconds <= _MAX_SECONDS:
        raise ValueError(text)
    return seconds


def _flag(text: str | None) -> bool:
    if text not in (None, "yes", "no"):
        raise ValueError(text)
    return text != "no"


def _name(text: str | None) -> str:
    if not text:
        raise ValueError(text)
    return text


_READERS: Final[dict[str, Callable[[str | None], Any]]] = {
    "tokens": _number(1, MAX_TOKENS),
    "token_seconds": _seconds,
    "token_bytes": _number(0, 1_000_000),
    "wait": _seconds,
    "refuse": _number(400, 599),
    "die": _after,
    "cut": _after,
    "silent": _after,
    "hang": _flag,
    "usage": _flag,
    "cached": _number(0, MAX_TOKENS),
    "gzip": _flag,
    "id": _name,
}
