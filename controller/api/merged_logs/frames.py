"""Items of one log: lines, marks and notes, read from an agent's frames and written as text or JSON lines. Pure."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from controller.store.views.logs import InstanceLog

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
        at_ms: when it was written, in milliseconds since 1970; None: the agent is too old to report it.
        exact: whether `at_ms` is right to the second; otherwise the line was written no later than `at_ms`.
        position: number of bytes that the process logged before it; None: unknown.
    """

    text: bytes
    at_ms: int | None = None
    exact: bool = True
    position: int | None = None


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Every line that existed at the start has arrived."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of the process."""

    reason: str | None = None
    exit_code: int | None = None
    message: str = ""
    at_ms: int | None = None

    @property
    def words(self) -> str:
        how = f"exited with code {self.exit_code}" if self.exit_code is not None else f"ended: {self.reason or 'gone'}"
        return f"{how} at {rfc3339(self.at_ms)}" if self.at_ms is not None else how


@dataclass(frozen=True, slots=True)
class Note:
    """The controller's note on a log: the reason why lines or their times are missing."""

    code: str
    message: str


Item = Line | CaughtUp | End | Note


class LogItem(NamedTuple):
    """An item and its log."""

    log: InstanceLog
    item: Item


Write = Callable[[Iterable[LogItem]], bytes]


def rfc3339(at_ms: int) -> str:
    """A time as RFC 3339, with milliseconds."""
    text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


class FrameReader:
    """Turns chunks of one answer into items. A chunk may end anywhere.

    Attributes:
        ended: an `End` was read. Later frames are ignored.
    """

    def __init__(self, *, timed: bool) -> None:
        self.ended = False
        self._timed = timed
        self._caught_up = False
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Item]:
        """Returns the items that this chunk completes.

        Raises:
            FrameError: the agent sent something else.
        """
        *frames, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > _REST_MAX_BYTES:
            if self._timed:
                raise FrameError(f"a frame is longer than {_REST_MAX_BYTES} bytes")
            frames, self._rest = [*frames, self._rest], b""
        return self._items(frames) if self._timed else [Line(frame) for frame in frames]

    def _items(self, frames: Iterable[bytes]) -> list[Item]:
        items: list[Item] = []
        for frame in frames:
            if self.ended:
                break
            item = _item(frame)
            if isinstance(item, CaughtUp):
                if self._caught_up:
                    continue
                self._caught_up = True
            self.ended = isinstance(item, End)
            items.append(item)
        return items

    def close(self) -> Iterator[Item]:
        """Yields the last line of a log that ends without an end of line."""
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
    if not (digits.isdigit() and len(digits) <= _MOST_DIGITS and (number := int(digits)) <= most):
        raise ValueError(f"not a number from 0 to {most}")
    return number


def _end(sent: Any) -> End:
    reason, code, message, at_ms = (sent.get(name) for name in ("reason", "exit_code", "message", "at_ms"))
    return End(
        reason if isinstance(reason, str) else None,
        code if isinstance(code, int) else None,
        message if isinstance(message, str) else "",
        at_ms if isinstance(at_ms, int) and 0 <= at_ms <= _MOST_MS else None,
    )


def as_json(items: Iterable[LogItem]) -> bytes:
    """One object per item: a line, the `end` of a process, or a `note` of the controller."""
    return b"".join(orjson.dumps(as_object(*one)) + b"\n" for one in items)


def as_object(log: InstanceLog, item: Item) -> dict[str, Any]:
    """The JSON form of an item; `gpuward logs` and live sockets read it."""
    written: dict[str, Any] = {"instance": log.instance, "rank": log.rank, "epoch": log.epoch}
    if isinstance(item, Line):
        written["at"] = rfc3339(item.at_ms) if item.at_ms is not None else None
        if not item.exact:
            written["exact"] = False
        written["position"] = item.position
        written["line"] = item.text.decode("utf-8", "replace")
    elif isinstance(item, End):
        at = rfc3339(item.at_ms) if item.at_ms is not None else None
        end = {"reason": item.reason, "exit_code": item.exit_code, "message": item.message, "at": at}
        written["end"] = {**end, "words": item.words}
    elif isinstance(item, Note):
        written["note"] = {"code": item.code, "message": item.message}
    return written


def as_text(*, names: bool, ranks: bool, timestamps: bool) -> Write:
    """Writes lines as the engine wrote them, after the requested prefixes: instance, rank, time."""

    def write(items: Iterable[LogItem]) -> bytes:
        return b"".join(_line(one, names=names, ranks=ranks, timestamps=timestamps) for one in items)

    return write


def _line(entry: LogItem, *, names: bool, ranks: bool, timestamps: bool) -> bytes:
    log, item = entry
    prefix = f"[{log.instance}{f' rank {log.rank}' if ranks else ''}] " if names else ""
    if not isinstance(item, Line):
        words = item.message if isinstance(item, Note) else f"the process has {item.words}"  # type: ignore[union-attr]
        return f"{prefix}gpuward: {words}\n".encode()
    if timestamps:
        prefix += f"{rfc3339(item.at_ms) if item.at_ms is not None else '-'} "
    return prefix.encode() + item.text + b"\n"
