"""What every error response of controller and gateway is made of."""

import json
from collections.abc import Mapping
from typing import Any

import orjson


class ResponseError(Exception):
    """An error response. `code` is for programs; `message` says what is wrong, where, and what to do."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = dict(details or {})
        self.headers = dict(headers or {})


def error_json(form: dict[str, Any]) -> bytes:
    """An error response's body."""
    try:
        return orjson.dumps(form)
    except orjson.JSONEncodeError:  # a message may quote a header that is not UTF-8; json escapes it
        return json.dumps(form, default=str).encode()
