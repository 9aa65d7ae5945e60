"""A chat with a deployment: its messages, and the parts of an answer as they arrive."""

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, Final

import msgspec

from cli.errors import CliError
from cli.transport.client import Api

_COMPLETIONS: Final = "/v1/chat/completions"
_DATA: Final = b"data:"
_DONE: Final = b"[DONE]"
_MAX_LINE_BYTES: Final = 4 * 2**20


class Chat:
    """The messages so far. `model`: the name of the deployment that answers them."""

    def __init__(self, api: Api, model: str) -> None:
        self._api = api
        self._model = model
        self._messages: list[dict[str, str]] = []

    def send(self, text: str) -> Generator[str, None, None]:
        """The parts of the answer as they arrive. They stay in the chat's history, also where the caller stops."""
        answer: list[str] = []
        messages = [*self._messages, {"role": "user", "content": text}]
        body = {"model": self._model, "messages": messages, "stream": True}
        try:
            with closing(_events(self._api.stream(_COMPLETIONS, body=body))) as events:
                for event in events:
                    if part := part_of(event):
                        answer.append(part)
                        yield part
        finally:
            if answer:
                self._messages = [*messages, {"role": "assistant", "content": "".join(answer)}]


def part_of(event: bytes) -> str:
    """The text in an event of the answer; may be empty. Raises `CliError` for an error, or for another event."""
    try:
        data: Any = msgspec.json.decode(event)
    except msgspec.DecodeError:
        data = None
    if not isinstance(data, dict):
        raise CliError(f"the answer is not an event of a chat: {event[:80]!r}")
    if error := data.get("error"):
        raise CliError(str(error.get("message", error)) if isinstance(error, dict) else str(error))
    choices = data.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    delta = first.get("delta")
    part = delta.get("content") if isinstance(delta, dict) else None
    return part if isinstance(part, str) else ""


def _events(chunks: Iterator[bytes]) -> Generator[bytes, None, None]:
    """The data of server-sent events, a line each, up to `[DONE]`."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.strip()
            if not data.startswith(_DATA):
                continue
            data = data.removeprefix(_DATA).strip()
            if data == _DONE:
                return
            yield data
        if len(rest) > _MAX_LINE_BYTES:
            raise CliError("the answer has a line without an end; it is not a chat")
    raise CliError("the answer broke off")
