"""The API's watch, read across restarts of the controller: each connection starts with a snapshot."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from cli.errors import CliError, RefusedError
from cli.transport.client import Api
from cli.transport.paths import Json, path_of

FIRST_PAUSE_S: Final = 1.0
MOST_PAUSE_S: Final = 10.0
SILENCE_S: Final = 30.0  # the controller sends a comment every ten seconds
_MOST_BYTES: Final = 512 * 1024 * 1024
_FOR_GOOD: Final = ("unauthenticated", "forbidden", "invalid", "not_found")  # another try has the same answer
_END: Final = b"\n\n"
_DATA: Final = b"data: "


class Update(NamedTuple):
    """Events that came together, in order: pairs of a type (snapshot, changed, gone) and an object."""

    events: Sequence[tuple[str, Json]]


class Lost(NamedTuple):
    """The watch broke off, and is retried; `why` is one line."""

    why: str


def watch(api: Api, **query: str | None) -> Iterator[Update | Lost]:
    """Endless. Raises `CliError` if the first connection fails, or the controller refuses a later one for good."""
    pause_s, connected = FIRST_PAUSE_S, False
    while True:
        started = time.monotonic()
        why = "the controller has ended the watch"
        try:
            for update in _one_watch(api, query):
                connected = True
                yield update
        except CliError as error:
            if not connected or (isinstance(error, RefusedError) and error.code in _FOR_GOOD):
                raise
            why = str(error).splitlines()[0]
        if time.monotonic() - started > MOST_PAUSE_S:
            pause_s = FIRST_PAUSE_S
        yield Lost(why)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MOST_PAUSE_S)


def _one_watch(api: Api, query: Mapping[str, str | None]) -> Iterator[Update]:
    reader = EventReader()
    for chunk in api.stream(path_of("watch"), silence_s=SILENCE_S, **dict[str, Any](query)):
        if events := reader.feed(chunk):
            yield Update(events)


class EventReader:
    """Server-sent events of the watch from chunks."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[tuple[str, Json]]:
        """The complete events. Raises `CliError` if the stream cannot be read as a watch."""
        self._parts.append(chunk)
        self._size += len(chunk)
        if self._size > _MOST_BYTES:
            raise CliError("the watch of the controller has an object that is too long")
        if b"\n" not in chunk:
            return []
        *texts, rest = b"".join(self._parts).split(_END)
        self._parts, self._size = [rest], len(rest)
        return [event for text in texts if (event := _event(text)) is not None]


def _event(text: bytes) -> tuple[str, Json] | None:
    data = b"".join(line.removeprefix(_DATA) for line in text.split(b"\n") if line.startswith(_DATA))
    if not data:
        return None  # a comment
    try:
        update: Any = msgspec.json.decode(data)
        return str(update["type"]), dict(update["object"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise CliError("the watch of the controller cannot be read; use the gpuward version of the server") from None
