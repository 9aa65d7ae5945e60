"""Takes the values of secrets out of what engines print.

It guards against accidents, such as a server that prints its environment: a program that wants to tell a secret can
print it in another form. Values shorter than `LEAST` bytes stay, since they are found in ordinary words. Where a text
is cut, parts of values of that size and more are taken out as well.
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
    """The secret values of one process. Each line of a value counts by itself, too."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._lines = sorted({line for value in values for line in _lines_of(value)}, key=len, reverse=True)
        found = b"|".join(map(re.escape, self._lines))
        self._pattern = re.compile(b"(?:" + found + b")+") if self._lines else None
        self.longest = max(map(len, self._lines), default=0)  # bytes of a value

    def redact(self, text: bytes) -> bytes:
        """The text without the values that are whole in it."""
        return text if self._pattern is None else self._pattern.sub(MASK, text)

    def redact_text(self, text: str) -> str:
        return text if self._pattern is None else self.redact(text.encode()).decode(errors="replace")

    def without_rest(self, text: bytes) -> bytes:
        """A text that begins at a cut, without the end of a value at its begin."""
        rest = self.rest(text)
        return MASK + text[rest:] if rest else text

    def rest(self, text: bytes) -> int:
        """How many bytes at the start of a text may be the end or the middle of a value."""
        return max((_rest(line, text) for line in self._lines), default=0)

    def without_begun(self, text: bytes) -> bytes:
        """A text that ends at a cut, without the start of a value at its end."""
        begun = self.begun(text)
        return text[: len(text) - begun] + MASK if begun >= LEAST else text

    def redact_cut(self, text: bytes) -> bytes:
        """As `redact`, of a text that is cut at both ends."""
        return self.without_begun(self.without_rest(self.redact(text)))

    def spans(self, before: bytes, after: bytes) -> bool:
        """Whether a value stands over the border of two texts."""
        if self._pattern is None:
            return False
        begin = before[-self.longest :]
        found = self._pattern.finditer(begin + after[: self.longest])
        return any(one.start() < len(begin) < one.end() for one in found)

    def begun(self, text: bytes) -> int:
        """How many bytes at the end of a text may be the start of a value that continues."""
        return max((_begun(line, text[-len(line) + 1 :]) for line in self._lines), default=0)


class RedactedStream:
    """A text that comes in parts, at whose borders no value is shown either; `cut`: its begin may be missing."""

    def __init__(self, redactor: Redactor, *, cut: bool = False) -> None:
        self._redactor = redactor
        self._held = b""
        self._cut = cut  # what is held begins at a cut

    def feed(self, part: bytes) -> bytes:
        """What can be shown after this part."""
        text = self._redactor.redact(self._held + part)
        if self._cut:
            if len(text) < self._redactor.longest and b"\n" not in text:
                self._held = text
                return b""
            text, self._cut = self._redactor.without_rest(text), False
        begun = self._redactor.begun(text)
        self._held = text[len(text) - begun :]
        return text[: len(text) - begun]

    def seam(self, part: bytes) -> bytes:
        """What can be shown after this part, between which and the last one something may be missing."""
        redactor, both, size = self._redactor, self._held + part, len(self._held)
        follows = redactor.spans(self._held, part) or redactor.begun(both) > len(part)
        if follows or (self._cut and redactor.rest(both) > size):  # nothing is missing
            return self.feed(part)
        rest, self._cut = self.end(), True
        return rest + self.feed(part)

    def end(self) -> bytes:
        """The rest: nothing more comes. It may end in the middle of a value that is being written."""
        text, self._held = self._held, b""
        if self._cut:
            text, self._cut = self._redactor.without_rest(text), False
        return self._redactor.without_begun(text)


def secrets_of(order: StartOrder) -> tuple[str, ...]:
    """The values of secrets in the environment of a process."""
    return tuple(order.env[name] for name in order.secret_env if name in order.env)


def _lines_of(value: str) -> Iterator[bytes]:
    for form in {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}:
        for line in form.splitlines():
            text = line.strip().encode(errors="surrogateescape")
            if len(text) >= LEAST:
                yield text


def _rest(value: bytes, text: bytes) -> int:
    """How many bytes at the start of a text are the end of this value, or all of it are from its middle."""
    at = value.find(text[:LEAST]) if len(text) >= LEAST else -1
    while at >= 0:
        size = min(len(value) - at, len(text))
        if value[at : at + size] == text[:size]:
            return size
        at = value.find(text[:LEAST], at + 1)
    return 0


def _begun(value: bytes, end: bytes) -> int:
    """How many bytes at the end of a text, which is shorter than the value, are its begin."""
    at = end.find(value[:LEAST])
    while at >= 0 and not value.startswith(end[at:]):
        at = end.find(value[:LEAST], at + 1)
    if at >= 0:
        return len(end) - at
    return next((size for size in range(min(LEAST - 1, len(end)), 0, -1) if value.startswith(end[-size:])), 0)
