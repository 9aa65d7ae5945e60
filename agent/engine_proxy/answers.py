"""Answers of the agent itself. A mark shows the gateway whether an engine may have received the request."""

from typing import Final

import orjson

from http1.protocol.handler import DROPPED, Handler
from http1.protocol.server_connection import ServerConnection
from schemas.wire import PROXY_OUTCOME_HEADER, PROXY_REFUSAL_HEADER

_JSON: Final = (b"content-type", b"application/json; charset=utf-8")


def refuse(connection: ServerConnection, status: int, code: str, message: str) -> Handler:
    """Answers a request of which no byte went to an engine."""
    return _error(connection, status, code, message, PROXY_REFUSAL_HEADER)


def end(connection: ServerConnection, status: int, code: str, message: str) -> Handler:
    """Ends a request that the engine may have received: no other replica gets it."""
    return _error(connection, status, code, message, PROXY_OUTCOME_HEADER)


def _error(connection: ServerConnection, status: int, code: str, message: str, mark: str) -> Handler:
    connection.answer(status, (_JSON, (mark.lower().encode(), code.encode())), error_body(code, message))
    return DROPPED


def error_body(code: str, message: str) -> bytes:
    return orjson.dumps({"error": {"code": code, "message": message, "details": {}}})
