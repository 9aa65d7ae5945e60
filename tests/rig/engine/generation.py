"""One answer's tokens, and what every form of answer has in common."""

import json
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol

_WORDS: Final = (
    "The",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    ",",
    "token",
    "by",
    "token",
    ".",
)
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
        """As JSON."""
        return json.dumps({"echo": self.echoed})


@dataclass(frozen=True, slots=True)
class Ask:
    """A validated request."""

    model: str
    prompt: str
    stream: bool = False
    limit: int = 1  # tokens that it allows
    usage_in_stream: bool = False
    tool: ToolCall | None = None
    fields: Any = None  # what only its own form needs

    @property
    def prompt_tokens(self) -> int:
        """Words of the prompt."""
        return len(self.prompt.split())


@dataclass(frozen=True, slots=True)
class Generation:
    """An answer that is being made."""

    id: str
    created: int  # seconds since 1970
    ask: Ask
    tokens: int  # of the answer
    token_bytes: int = 0
    complete: bool = False  # it ended by itself, not at the request's limit
    usage: bool = True
    cached: int | None = None

    def piece(self, i: int) -> str:
        """The i-th token's text."""
        if self.ask.tool is not None:
            return self.ask.tool.arguments[i * _ARGUMENT_CHARACTERS : (i + 1) * _ARGUMENT_CHARACTERS]
        return (("" if i == 0 else " ") + _WORDS[i % len(_WORDS)]).ljust(self.token_bytes, ".")

    def text(self) -> str:
        """All of it."""
        return "".join(self.piece(i) for i in range(self.tokens))


def tokens_of(ask: Ask, told: int | None) -> int:
    """How many tokens the answer has, where the behaviour tells so many or none."""
    if ask.tool is not None:
        return -(-len(ask.tool.arguments) // _ARGUMENT_CHARACTERS)
    return ask.limit if told is None else told


class Form(Protocol):
    """A form of answer: bytes of a stream's parts, or the whole."""

    stream_type: str  # content type of a stream
    whole_type: str

    def opening(self) -> bytes:
        """What comes before the first token."""

    def token(self, i: int) -> bytes:
        """The i-th token."""

    def closing(self) -> bytes:
        """What follows the last token."""

    def whole(self) -> bytes:
        """The answer that is not streamed."""


class JsonForm:
    """The form of most endpoints."""

    stream_type = SSE
    whole_type = JSON

    def __init__(self, generation: Generation) -> None:
        self._of = generation
        self._ask = generation.ask

    def opening(self) -> bytes:
        """Nothing."""
        return b""

    def closing(self) -> bytes:
        """Nothing."""
        return b""

    def base(self, kind: str, prefix: str) -> dict[str, Any]:
        """Fields that every object of the answer has."""
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


def whole(content: dict[str, Any]) -> bytes:
    """A whole answer with the monotonic time in it."""
    return json.dumps({**content, "monotonic_s": time.monotonic()}).encode()
