"""Answers to OpenAI's chat completions, completions and embeddings. Words count as tokens. Pure."""

import hashlib
import json
import struct
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

_TOKENS: Final = ("The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", ".")
_ARGUMENT_CHARACTERS: Final = 16  # of a tool call's arguments in one token
_ECHOED_CHARACTERS: Final = 1000
_DIMENSIONS: Final = 8
_MOST_DIMENSIONS: Final = 4096
_MOST_TOKENS: Final = 10_000_000
_MOST_CHOICES: Final = 128

Json = dict[str, Any]


class BadRequestError(ValueError):
    """The request is invalid; `param` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Answer:
    """The content, or the events of a stream."""

    usage: Json
    content: Json = field(default_factory=dict)
    events: tuple[Json, ...] = ()


def answer(path: str, body: Json, id_: str, created: int) -> Answer:
    """The answer to a request at one of `ENDPOINTS`. Raises BadRequestError."""
    if not isinstance(model := body.get("model"), str) or not model:
        raise BadRequestError("model", "model: must be the model's name")
    return ENDPOINTS[path](body, {"id": id_, "object": "list", "created": created, "model": model})


def _chat(body: Json, base: Json) -> Answer:
    prompt, last = _conversation(body)
    limit, tool = _number(body, _MOST_TOKENS, "max_completion_tokens", "max_tokens"), _tool(body)
    tokens, reason = _text(limit) if tool is None else _arguments(last)
    call: Json = {"id": f"call-{base['id']}", "type": "function"}
    if not _flag(body, "stream"):
        message: Json = {"role": "assistant", "content": "".join(tokens)}
        if tool is not None:
            call["function"] = {"name": tool, "arguments": message["content"]}
            message |= {"content": None, "tool_calls": [call]}
        choice: Json = {"message": message, "logprobs": None, "finish_reason": reason}
        return _complete(base | {"object": "chat.completion"}, choice, body, prompt, len(tokens))
    deltas: list[Json] = [{"content": token} for token in tokens]
    if tool is not None:
        calls: list[Json] = [{"index": 0, "function": {"arguments": token}} for token in tokens]
        calls[0] |= call | {"function": {"name": tool, "arguments": tokens[0]}}
        deltas = [{"tool_calls": [delta]} for delta in calls]
    deltas[0]["role"] = "assistant"
    choices: list[Json] = [{"delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
    choices[-1]["finish_reason"] = reason
    return _streamed(base | {"object": "chat.completion.chunk"}, choices, body, prompt)


def _completion(body: Json, base: Json) -> Answer:
    prompt, base = " ".join(_texts(body, "prompt")), base | {"object": "text_completion"}
    tokens, reason = _text(_number(body, _MOST_TOKENS, "max_tokens"))
    if not _flag(body, "stream"):
        choice: Json = {"text": "".join(tokens), "logprobs": None, "finish_reason": reason}
        return _complete(base, choice, body, prompt, len(tokens))
    choices: list[Json] = [{"text": token, "logprobs": None, "finish_reason": None} for token in tokens]
    choices[-1]["finish_reason"] = reason
    return _streamed(base, choices, body, prompt)


def _embeddings(body: Json, base: Json) -> Answer:
    """A vector for each input, derived from its text."""
    inputs, form = _texts(body, "input"), body.get("encoding_format")
    if form not in (None, "float", "base64"):
        raise BadRequestError("encoding_format", "encoding_format: must be float or base64")
    dimensions = _number(body, _MOST_DIMENSIONS, "dimensions") or _DIMENSIONS
    data = []
    for index, text in enumerate(inputs):
        vector: Any = _vector(text, dimensions)
        if form == "base64":
            vector = b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
        data.append({"index": index, "object": "embedding", "embedding": vector})
    prompt_tokens = len(" ".join(inputs).split())
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return Answer(usage, base | {"data": data, "usage": usage})


def _vector(text: str, dimensions: int) -> list[float]:
    digests = (hashlib.sha256(f"{i} {text}".encode(errors="replace")).digest() for i in range(dimensions))
    return [round(int.from_bytes(digest[:4], "big") / 2**31 - 1, 6) for digest in digests]


def _text(limit: int | None) -> tuple[tuple[str, ...], str]:
    """The tokens of a text, and why it ends."""
    return _TOKENS[:limit], "stop" if limit is None or limit >= len(_TOKENS) else "length"


def _arguments(text: str) -> tuple[tuple[str, ...], str]:
    """The tokens of the arguments of a tool's call, and why they end."""
    arguments = json.dumps({"echo": text[:_ECHOED_CHARACTERS]})
    starts = range(0, len(arguments), _ARGUMENT_CHARACTERS)
    return tuple(arguments[i : i + _ARGUMENT_CHARACTERS] for i in starts), "tool_calls"


def _usage(prompt: str, tokens: int) -> Json:
    prompt_tokens = len(prompt.split())
    return {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}


def _complete(base: Json, choice: Json, body: Json, prompt: str, tokens: int) -> Answer:
    """An answer with equal choices, as many as requested."""
    choices = [{"index": i, **choice} for i in range(_number(body, _MOST_CHOICES, "n") or 1)]
    usage = _usage(prompt, tokens * len(choices))
    return Answer(usage, base | {"choices": choices, "usage": usage})


def _streamed(base: Json, choices: list[Json], body: Json, prompt: str) -> Answer:
    """The same as events: one for each token of each choice, and for the usage if requested."""
    if not isinstance(options := body.get("stream_options") or {}, dict):
        raise BadRequestError("stream_options", "stream_options: must be an object")
    count = _number(body, _MOST_CHOICES, "n") or 1
    events = [base | {"choices": [{"index": i, **choice}]} for choice in choices for i in range(count)]
    usage = _usage(prompt, len(events))
    if options.get("include_usage"):
        events.append(base | {"choices": [], "usage": usage})
    return Answer(usage, events=tuple(events))


ENDPOINTS: Final[dict[str, Callable[[Json, Json], Answer]]] = {
    "/v1/chat/completions": _chat,
    "/v1/completions": _completion,
    "/v1/embeddings": _embeddings,
}


def _number(body: Json, most: int, *names: str) -> int | None:
    """The first of these fields that is given, if any."""
    for name in names:
        if (number := body.get(name)) is not None:
            if type(number) is not int or not 1 <= number <= most:
                raise BadRequestError(name, f"{name}: must be a whole number from 1 to {most}")
            return number
    return None


def _flag(body: Json, field: str) -> bool:
    if not isinstance(value := body.get(field) or False, bool):
        raise BadRequestError(field, f"{field}: must be true or false")
    return value


def _texts(body: Json, field: str) -> list[str]:
    """A text, texts, or the tokens of one or several texts."""
    value: Any = body.get(field)
    items: list[Any] = value if isinstance(value, list) and value and not _are_tokens(value) else [value]
    texts = [" ".join(map(str, item)) if _are_tokens(item) else item for item in items]
    if all(isinstance(text, str) for text in texts):
        return texts
    raise BadRequestError(field, f"{field}: must be a string or a list of strings")


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _conversation(body: Json) -> tuple[str, str]:
    """The text of all messages, and that of the last one."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages", "messages: must be a list with at least one message")
    texts = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequestError("messages", "messages: every message must be an object with a role")
        content = message.get("content")
        if not isinstance(content, str | list | None):
            raise BadRequestError("messages", "messages: content must be a string or a list of parts")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        texts.append(" ".join(str(part.get("text") or "") for part in parts if isinstance(part, dict)))
    return " ".join(texts), texts[-1]


def _tool(body: Json) -> str | None:
    """The name of the chosen or first tool; None if none is offered or wanted, or if a tool has answered."""
    tools, choice = body.get("tools"), body.get("tool_choice")
    if not tools or choice == "none" or body["messages"][-1]["role"] == "tool":
        return None
    try:
        names = [str(tool["function"]["name"]) for tool in tools]
    except (KeyError, TypeError):
        raise BadRequestError("tools", "tools: must be a list of functions with names") from None
    if not isinstance(choice, dict):
        return names[0]
    function = choice.get("function")
    if not isinstance(function, dict) or function.get("name") not in names:
        raise BadRequestError("tool_choice", "tool_choice: must name one of tools")
    return str(function["name"])
