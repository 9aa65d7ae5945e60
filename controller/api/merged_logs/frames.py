"""What comes from one log: lines with their times, marks and notes. Reads the agents' frames. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

_REST_MAX_BYTES: Final = 131_072  # of a frame that has not ended; agents send shorter ones
_HEAD_PARTS: Final = 4
_MOST_MS: Final = 253_402_300_799_999  # the last millisecond of the year 9999
_MOST_POSITION: Final = 2**62
_MOST_DIGITS: Final = 19


class FrameError(Exception):
    """The agent sent something else than frames."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log.

    Attributes:
        text: without its end.
        at_ms: when it was written, in milliseconds since 1970; None: the agent is too old to know.
        exact: to the second; else it was written no later than that.
        position: number of bytes that the process logged before it; None: unknown.
    """

    text: bytes
    at_ms: int | None = None
    exact: bool = True
    position: int | None = None


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """All that was there has come."""


@dataclass(frozen=True, slots=True)
class End:
    """The process has ended."""

    reason: str | None = None
    exit_code: int | None = None
    message: str = ""
    at_ms: int | None = None

    @property
    def words(self) -> str:
        """How, in words."""
        how = f"exited with code {self.exit_code}" if self.exit_code is not None else f"ended: {self.reason or 'gone'}"
        return f"{how} at {moment(self.at_ms)}" if self.at_ms is not None else how


@dataclass(frozen=True, slots=True)
class Note:
    """Something of ours about a log: why its lines are missing, or have no times."""

    code: str
    message: str


Item = Line | CaughtUp | End | Note


def moment(at_ms: int) -> str:
    """A time as RFC 3339, with milliseconds."""
    text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class FrameReader:
    """Turns chunks of one answer into items. A chunk may end anywhere. All is there once, and the process ends once.

    Attributes:
        ended: the process has; what comes behind that is not read.
    """

    def __init__(self, *, timed: bool) -> None:
        self.ended = False
        self._timed = timed
        self._caught_up = False
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Item]:
        """The items that this chunk completes.

        Raises:
            FrameError: these are no frames.
        """
        *frames, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _REST_MAX_BYTES:
            if self._timed:
                raise FrameError(f"a frame is longer than {_REST_MAX_BYTES} bytes")
            frames, self._rest = [*frames, self._rest], b""
        return self._items(frames) if self._timed else [Line(frame) for frame in frames]

    def _items(self, frames: Iterable[bytes]) -> list[Item]:
        found: list[Item] = []
        for frame in frames:
            if self.ended:
                break
            item = _item(frame)
            if isinstance(item, CaughtUp):
                if self._caught_up:
                    continue
                self._caught_up = True
            self.ended = isinstance(item, End)
            found.append(item)
        return found

    def close(self) -> Iterator[Item]:
        """What is left of a log that ends without an end of line."""
        if self._rest and not self._timed:
            yield Line(self._rest)


def _item(frame: bytes) -> Item:
    try:
        match frame[:1]:
            case b"L":
                parts = frame[1:].split(b" ", _HEAD_PARTS - 1)
                at_ms, exact, position, text = parts
                return Line(text, _number(at_ms, _MOST_MS), exact == b"1", _number(position, _MOST_POSITION))
            case b"C":
                return CaughtUp()
            case b"E":
                return _end(orjson.loads(frame[1:]))
            case _:
                raise FrameError(f"not a frame: {frame[:80]!r}")
    except (ValueError, AttributeError) as error:
        raise FrameError(f"not a frame: {frame[:80]!r}") from error


def _number(digits: bytes, most: int) -> int:
    """A number of a frame.

    Raises:
        ValueError: it is not one from 0 to `most`.
    """
    if not (digits.isdigit() and len(digits) <= _MOST_DIGITS and (number := int(digits)) <= most):
        raise ValueError(f"not a number from 0 to {most}")
    return number


def _end(told: Any) -> End:
    reason, code, message, at_ms = (told.get(name) for name in ("reason", "exit_code", "message", "at_ms"))
    return End(
        reason if isinstance(reason, str) else None,
        code if isinstance(code, int) else None,
        message if isinstance(message, str) else "",
        at_ms if isinstance(at_ms, int) and 0 <= at_ms <= _MOST_MS else None,
    )
