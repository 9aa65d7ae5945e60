"""Takes the values of secrets out of what engines print.

It guards against accidents, such as a server that prints its environment: a program that wants to tell a secret can
print it in another form. Values shorter than `LEAST` bytes stay, since they are found in ordinary words.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from schemas.redaction import LEAST_BYTES, MARK
from schemas.wire import StartOrder

LEAST: Final = LEAST_BYTES
MASK: Final = MARK.encode()


class Redactor:
    """The values of one process.

    Args:
        values: what must not be shown. Each line of a value counts by itself, too.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._lines = sorted({line for value in values for line in _lines_of(value)}, key=len, reverse=True)
        found = b"|".join(map(re.escape, self._lines))
        self._pattern = re.compile(b"(?:" + found + b")+") if self._lines else None

    def redact(self, text: bytes) -> bytes:
        """The text without the values that are whole in it."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def redact_text(self, text: str) -> str:
        """As `redact`."""
        return text if self._pattern is None else self.redact(text.encode()).decode(errors="replace")

    def begun(self, text: bytes) -> int:
        """How many bytes at the end of a text may be the begin of a value that goes on."""
        return max((_begun(line, text[-len(line) + 1 :]) for line in self._lines), default=0)


class RedactedStream:
    """A text that comes in parts, at whose borders no value is shown either."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = b""

    def feed(self, part: bytes) -> bytes:
        """What can be shown after this part."""
        text = self._redactor.redact(self._held + part)
        begun = self._redactor.begun(text)
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]

    def end(self) -> bytes:
        """The rest: nothing more comes."""
        text, self._held = self._held, b""
        return text


def secrets_of(order: StartOrder) -> tuple[str, ...]:
    """The values of secrets in the environment of a process."""
    return tuple(order.env[name] for name in order.secret_env if name in order.env)


def _lines_of(value: str) -> Iterator[bytes]:
    for form in {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}:
        for line in form.splitlines():
            text = line.strip().encode(errors="surrogateescape")
            if len(text) >= LEAST:
                yield text


def _begun(value: bytes, end: bytes) -> int:
    """How many bytes at the end of a text, which is shorter than the value, are its begin."""
    at = end.find(value[:LEAST])
    while at >= 0 and not value.startswith(end[at:]):
        at = end.find(value[:LEAST], at + 1)
    if at >= 0:
        return len(end) - at
    return next((size for size in range(min(LEAST - 1, len(end)), 0, -1) if value.startswith(end[-size:])), 0)
