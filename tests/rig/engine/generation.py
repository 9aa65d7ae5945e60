"""One answer's tokens, and the common base of forms of answers."""

import json
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

_WORDS: Final = (
    "The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", ",", "token", "by", "token", ".",
)  # fmt: skip
_ARGUMENT_CHARACTERS: Final = 16  # of a tool call's arguments in one token
SSE: Final = "text/event-stream"
JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool that the request offers: its arguments echo the prompt."""

    name: str
    echoed: str

    @property
    def arguments(self) -> str:
        return json.dumps({"echo": self.echoed})


@dataclass(frozen=True, slots=True)
class Ask:
    """A validated request."""

    model: str
    prompt: str
    stream: bool = False
    limit: int = 1  # of tokens
    usage_in_stream: bool = False
    tool: ToolCall | None = None
    fields: Any = None  # for its own form

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt.split())


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer that is being made."""

    id: str
    created: int  # seconds since 1970
    ask: Ask
    tokens: int  # of the answer
    token_bytes: int = 0
    ended: bool = False  # by itself, not at the request's limit
    usage: bool = True
    cached: int | None = None

    def piece(self, i: int) -> str:
        if self.ask.tool is not None:
            return self.ask.tool.arguments[i * _ARGUMENT_CHARACTERS : (i + 1) * _ARGUMENT_CHARACTERS]
        return (("" if i == 0 else " ") + _WORDS[i % len(_WORDS)]).ljust(self.token_bytes, ".")

    def text(self) -> str:
        return "".join(self.piece(i) for i in range(self.tokens))


def tokens_of(ask: Ask, ordered: int | None) -> int:
    """The number of the answer's tokens. `ordered`: by the behaviour."""
    if ask.tool is not None:
        return -(-len(ask.tool.arguments) // _ARGUMENT_CHARACTERS)
    return ask.limit if ordered is None else ordered


class Form(Protocol):
    """A form of answer: bytes of a stream's parts, or of a complete answer."""

    stream_type: str  # content type of a stream
    complete_type: str

    def opening(self) -> bytes:
        """Before the first token."""

    def token(self, i: int) -> bytes: ...

    def closing(self) -> bytes:
        """After the last token."""

    def complete(self) -> bytes:
        """The answer that is not streamed."""


class JsonForm:
    """The form of most endpoints."""

    stream_type = SSE
    complete_type = JSON

    def __init__(self, generation: Generation) -> None:
        self._of = generation
        self._ask = generation.ask

    def opening(self) -> bytes:
        return b""

    def closing(self) -> bytes:
        return b""

    def base(self, kind: str, prefix: str) -> dict[str, Any]:
        of = self._of
        return {"id": f"{prefix}-{of.id}", "object": kind, "created": of.created, "model": of.ask.model}

    def usage(self) -> dict[str, Any]:
        """Tokens, as the OpenAI API counts them."""
        of = self._of
        prompt = of.ask.prompt_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": prompt, "completion_tokens": of.tokens, "total_tokens": prompt + of.tokens,
        }  # fmt: skip
        return usage if of.cached is None else usage | {"prompt_tokens_details": {"cached_tokens": of.cached}}


def event(data: str, name: str | None = None) -> bytes:
    """A server-sent event with the monotonic time in it; `data` is a JSON object."""
    stamped = f'data: {data[:-1]}, "monotonic_s": {time.monotonic():.6f}}}\n\n'
    return (stamped if name is None else f"event: {name}\n{stamped}").encode()


def named_event(content: dict[str, Any]) -> bytes:
    """An event with the name that its content has."""
    return event(json.dumps(content), content["type"])


def complete(content: dict[str, Any]) -> bytes:
    """A complete answer with the monotonic time in it."""
    return json.dumps({**content, "monotonic_s": time.monotonic()}).encode()
