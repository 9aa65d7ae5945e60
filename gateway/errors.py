"""The gateway's own errors, in the form that each path's clients know."""

from collections.abc import Mapping
from typing import Any, Final

import structlog

from http1.daemon.log_limit import LogLimit
from http1.protocol.heads import Fields
from schemas.api.models import MODEL_PATHS
from schemas.api.response_error import ResponseError, error_json

MESSAGES_PATH: Final = b"/v1/messages"
RESPONSES_PATH: Final = b"/v1/responses"
NO_RETRY: Final = {"x-should-retry": "false"}  # heeded by OpenAI's and Anthropic's clients, which repeat 5xx
_WITHOUT_V1: Final = frozenset(path.encode() for path in MODEL_PATHS if not path.startswith("/v1/"))
_RETRY_AFTER_S: Final = "1"
_OPENAI_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_MESSAGES_TYPES: Final = _OPENAI_TYPES | {
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
_SERVER_ERROR: Final = 500
_MET_BY_MANY: Final = ("unavailable", "overloaded")
_WAITING_HELPS: Final = frozenset({429, 503})
_WAITING_IS_IN_VAIN: Final = frozenset({"stopped", "stopped_by_policy"})

log = structlog.get_logger(__name__)


class GatewayError(ResponseError):
    """An error response of the gateway. `param`: what of the request is wrong."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(status, code, message, details=details, headers=headers)
        self.param = param


def unavailable(message: str) -> GatewayError:
    """503: the same request may succeed in a moment."""
    return GatewayError(503, "unavailable", message)


def unauthenticated() -> GatewayError:
    return GatewayError(
        401,
        "unauthenticated",
        "API key is missing or invalid; send Authorization: Bearer KEY (for gpuward: set GPUWARD_API_KEY)",
        headers={"WWW-Authenticate": "Bearer"},
    )


def response(error: GatewayError, path: bytes, request_id: str) -> tuple[Fields, bytes]:
    """Fields and body of an error's response. Where waiting helps, it has a `Retry-After`."""
    headers = dict(error.headers)
    if error.status in _WAITING_HELPS and error.code not in _WAITING_IS_IN_VAIN and headers != NO_RETRY:
        headers.setdefault("Retry-After", _RETRY_AFTER_S)
    fields = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    fields.append((b"content-type", b"application/json; charset=utf-8"))
    return fields, error_json(_form(error, path, request_id))


def error_event(error: GatewayError, path: bytes, request_id: str, number: int = 0) -> bytes:
    """The event by which the clients of a path see an error in a stream.

    `number`: this event's number in a stream of `/v1/responses`.
    """
    form = _form(error, path, request_id)
    if path.startswith(RESPONSES_PATH):
        # Clients read `message` and `code`, as documented, or `error`, as in answers that have not started.
        known = {"type": "error", "code": error.code, "message": error.message, "param": error.param}
        form = known | {"sequence_number": number} | form
    elif not path.startswith(MESSAGES_PATH):
        return b"data: " + error_json(form) + b"\n\n"
    return b"event: error\ndata: " + error_json(form) + b"\n\n"


def _form(error: GatewayError, path: bytes, request_id: str) -> dict[str, Any]:
    details = {**error.details, "request_id": request_id}
    body: dict[str, Any] = {"code": error.code, "message": error.message, "details": details}
    client_fault = error.status < 500  # noqa: PLR2004 - 4xx
    if path.startswith(MESSAGES_PATH):
        kind = _MESSAGES_TYPES.get(error.status, "invalid_request_error" if client_fault else "api_error")
        return {"type": "error", "error": body | {"type": kind}, "request_id": request_id}
    if path.startswith(b"/v1/") or path in _WITHOUT_V1:
        kind = _OPENAI_TYPES.get(error.status, "invalid_request_error" if client_fault else "server_error")
        return {"error": body | {"type": kind, "param": error.param}}
    return {"error": body}


class FailureLog:
    """Logs what ended requests: what many meet at once, such as a database that is away, once a minute."""

    def __init__(self) -> None:
        self._limit = LogLimit()

    def note(self, error: GatewayError, path: bytes, request_id: str) -> None:
        """Logs an error of ours, unless the client made the mistake."""
        if error.status < _SERVER_ERROR:
            return
        more = self._limit.admit(error.code if error.code in _MET_BY_MANY else f"{error.code} {error.message}")
        if more is not None:
            log.warning(
                "request failed",
                path=path.decode("latin-1"),
                status=error.status,
                error=error.message,
                request_id=request_id,
                more_before=more,
            )
