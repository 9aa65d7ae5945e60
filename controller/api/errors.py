"""Turns errors into responses: every error is `{"error": {"code", "message", "details"}}`."""

from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from controller.api.server_log import MALFORMED
from controller.engines.base import SpecError
from controller.live.errors import UnknownWhileAwayError, WatchEndedError
from controller.runtime.database import is_database_trouble, is_disk_full, is_unstorable_text
from controller.store.access.secret_keys import SecretsKeyError
from controller.store.core.refusals import (
    AlreadyRotatedError,
    ChangedMeanwhileError,
    CredentialTakenError,
    GenerationConflictError,
    InUseError,
    LastAdminKeyError,
    NoSecretsKeyError,
    NotFoundError,
    NotGrantedError,
    NothingToRestartError,
    NothingToUndoError,
    NotRollingError,
    NotScaledError,
    RetiredArgsError,
    TokenRefusedError,
    WorkerNameTakenError,
)
from controller.store.views.paging import BadCursorError
from http1.bodies import BodiesFullError
from schemas.api.response_error import ResponseError, error_json
from schemas.database_disk import DATABASE_FULL, DATABASE_FULL_TEXT
from schemas.manifest.problems import FieldProblem, ManifestError

_RETRY_AFTER_S: Final = "1"


class ApiError(ResponseError):
    """An error response of the API."""


# Refusals of the store: their status and code.
_STATUSES: Final[Sequence[tuple[type[Exception], int, str]]] = (
    (NotFoundError, 404, "not_found"),
    (NotGrantedError, 403, "forbidden"),
    (RetiredArgsError, 400, "invalid"),
    (GenerationConflictError, 412, "generation_conflict"),
    (ChangedMeanwhileError, 412, "generation_conflict"),
    (InUseError, 409, "in_use"),
    (NotScaledError, 409, "not_asleep"),
    (NotRollingError, 409, "not_rolling"),
    (NothingToUndoError, 409, "nothing_to_undo"),
    (NothingToRestartError, 409, "nothing_to_restart"),
    (LastAdminKeyError, 409, "last_admin_key"),
    (WorkerNameTakenError, 409, "name_taken"),
    (CredentialTakenError, 409, "credential_taken"),
    (AlreadyRotatedError, 409, "already_rotated"),
    (NoSecretsKeyError, 409, "no_secrets_key"),
    (SecretsKeyError, 409, "no_secrets_key"),
    (TokenRefusedError, 401, "token_refused"),
    (BadCursorError, 400, "invalid"),
)
DATABASE_UNAVAILABLE: Final = "database_unavailable"


def as_api_error(error: Exception) -> ApiError | None:
    """The response for a known error; None for an unexpected one."""
    known: ApiError | None
    match error:
        case ApiError():
            known = error
        case ManifestError():
            known = invalid(error.problems)
        case SpecError():
            known = invalid([field_problem(error)])
        case web.HTTPException():
            known = _from_aiohttp(error)
        case TimeoutError():
            known = unavailable("timed_out", "the request timed out here; try again in a moment")
        case WatchEndedError():
            known = database_unavailable()
        case _ if is_database_trouble(error):
            known = database_unavailable(full=is_disk_full(error))
        case _:
            known = _refused(error)
    return known


def _refused(error: Exception) -> ApiError | None:
    """The response for a refusal of the store or of admission; None for an unexpected error."""
    if isinstance(error, BodiesFullError):
        return _bodies_full(error)
    if isinstance(error, UnknownWhileAwayError):
        return unavailable("unavailable", str(error))
    if isinstance(error, MALFORMED):
        return ApiError(400, "invalid", f"body: incomplete or badly encoded: {error}")
    if is_unstorable_text(error):
        return ApiError(400, "invalid", "text: contains characters that cannot be stored, such as NUL; remove them")
    refusal = next((entry for entry in _STATUSES if isinstance(error, entry[0])), None)
    if refusal is None:
        return None
    details: dict[str, Any] = {}
    if isinstance(error, ChangedMeanwhileError) and error.changed:
        details = {"changed": [asdict(change) for change in error.changed]}
    elif isinstance(error, NotGrantedError | RetiredArgsError):
        details = {"problems": error.problems}
    return ApiError(refusal[1], refusal[2], str(error), details=details)


def field_problem(error: SpecError) -> FieldProblem:
    """The problem in an engine's error, which begins with the field: `image: is required by ...`."""
    field, _, rest = str(error).partition(": ")
    return FieldProblem(field, rest) if rest else FieldProblem("", field)


def invalid(problems: Sequence[FieldProblem]) -> ApiError:
    """400: the message names the fields; the details have a problem and a fix for each."""
    fields = ", ".join(problem.path or "body" for problem in problems)
    return ApiError(
        400,
        "invalid",
        f"the request is invalid: {fields}",
        details={"problems": [{"path": problem.path, "message": problem.message} for problem in problems]},
    )


def unavailable(code: str, message: str) -> ApiError:
    """503: the same request may succeed in a moment."""
    return ApiError(503, code, message, headers={"Retry-After": _RETRY_AFTER_S})


def database_unavailable(*, full: bool = False) -> ApiError:
    """503: the database does not answer, or does not write because its disk is `full`."""
    if full:
        return unavailable(DATABASE_FULL, DATABASE_FULL_TEXT)
    return unavailable(DATABASE_UNAVAILABLE, "the database is unavailable; try again in a moment")


def _bodies_full(error: BodiesFullError) -> ApiError:
    limit = f"{error.limit_bytes // 2**20} MiB"
    if error.of_key:
        message = f"body: this key's requests in flight would hold more than {limit}; wait until others are answered"
        return ApiError(429, "too_much_in_flight", message, headers={"Retry-After": _RETRY_AFTER_S})
    return unavailable(
        "overloaded", f"body: all requests in flight would hold more than {limit}; try again in a moment"
    )


def _from_aiohttp(error: web.HTTPException) -> ApiError:
    code = HTTPStatus(error.status).phrase.lower().replace(" ", "_").replace("-", "_")
    match error:
        case web.HTTPNotFound():
            message = "unknown path; /openapi.json lists all paths"
        case web.HTTPMethodNotAllowed():
            message = f"method {error.method} is not allowed here; allowed: {', '.join(sorted(error.allowed_methods))}"
        case web.HTTPRequestEntityTooLarge():
            code, message = "too_large", "body: too large; make it smaller"
        case _:
            message = error.reason
    kept = {name: error.headers[name] for name in ("Allow", "Location") if name in error.headers}
    return ApiError(error.status, code, message, headers=kept)


_WAITING_HELPS: Final = frozenset({429, 503})


def error_response(error: ApiError, *, request_id: str) -> web.Response:
    """The response, with a `Retry-After` if waiting helps."""
    headers = dict(error.headers)  # a copy, because requests may share the error
    if error.status in _WAITING_HELPS:
        headers.setdefault("Retry-After", _RETRY_AFTER_S)
    form = error_form(error)
    body = error_json({"error": form | {"details": {**form["details"], "request_id": request_id}}})
    return web.Response(status=error.status, body=body, content_type="application/json", headers=headers)


def error_form(error: ApiError) -> dict[str, Any]:
    """The value of `error` in a response."""
    return {"code": error.code, "message": error.message, "details": error.details}
