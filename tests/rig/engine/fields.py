"""Fields of requests, checked."""

from typing import Any, Final

from rig.engine.behaviour import MAX_TOKENS
from rig.engine.errors import BadRequestError

_DEFAULT_TOKENS: Final = 16


def body_object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BadRequestError("body", "the body must be a JSON object")
    return body


def model_name(body: dict[str, Any]) -> str:
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise BadRequestError("model", "model: must be the model's name")
    return str(body["model"])


def token_limit(body: dict[str, Any], *fields: str) -> int:
    """The first of these fields that is given, else a default."""
    field = next((name for name in fields if body.get(name) is not None), fields[-1])
    tokens = body.get(field)
    tokens = _DEFAULT_TOKENS if tokens is None else tokens
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MAX_TOKENS:
        raise BadRequestError(field, f"{field}: must be a whole number from 1 to {MAX_TOKENS}")
    return tokens


def flag(body: dict[str, Any], field: str) -> bool:
    value = body.get(field) or False
    if not isinstance(value, bool):
        raise BadRequestError(field, f"{field}: must be true or false")
    return value


def include_usage(body: dict[str, Any]) -> bool:
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequestError("stream_options", "stream_options: must be an object")
    return bool(options.get("include_usage"))


def texts(body: dict[str, Any], field: str) -> list[str]:
    """A text, texts, or tokens of one or several texts."""
    value = body.get(field)
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(item, str) for item in value):
            return list(value)
        if all(_is_tokens(item) for item in value):
            return [" ".join(map(str, item)) for item in value]
        if _is_tokens(value):
            return [" ".join(map(str, value))]
    raise BadRequestError(field, f"{field}: must be a string or a list of strings")


def text(body: dict[str, Any], field: str) -> str:
    if not isinstance(value := body.get(field), str):
        raise BadRequestError(field, f"{field}: must be a string")
    return value


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def messages_text(body: dict[str, Any], field: str = "messages") -> str:
    """The texts of a conversation, by messages with content."""
    messages = body.get(field)
    if not isinstance(messages, list) or not messages:
        raise BadRequestError(field, f"{field}: must be a list with at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequestError(field, f"{field}: every message must be an object with a role")
        if not isinstance(message.get("content"), str | list | None):
            raise BadRequestError(field, f"{field}: content must be a string or a list of parts")
    return " ".join(content_text(message.get("content")) for message in messages)


def content_text(content: Any) -> str:
    """The text of a message's content, which is a text or a list of parts."""
    if isinstance(content, list):
        return " ".join(_part_text(part) for part in content)
    return content if isinstance(content, str) else ""


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        return str(part)
    value = part.get("text", part.get("content", part.get("output", "")))
    return content_text(value)
