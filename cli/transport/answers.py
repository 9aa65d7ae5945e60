"""The objects in answers of a server, and the errors that answers mean."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cli.errors import CliError, NotFoundError, RefusedError, UnreachableError
from cli.transport.paths import Json
from cli.transport.servers import Answer, NoAnswerError

_LOCATION: Final = "location"
_NO_ROUTE: Final = "unknown path"  # starts the API's message; for a missing object it is another
_OTHER_PORT: Final = "no such path"  # in the message of a gateway below /v1, and of an agent


def object_of(url: str, content: bytes) -> Json:
    """The JSON object in an answer; empty for an empty answer. Raises `CliError` if the answer is not an object."""
    if not content.strip():
        return {}
    try:
        answer = msgspec.json.decode(content)
    except msgspec.DecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise not_gpuward(url, "answers")
    return answer


def not_gpuward(url: str, does: str) -> CliError:
    return CliError(f"{url} {does}, but it is not a Gpuward controller; check GPUWARD_URL (--url)")


def unreachable(url: str, why: NoAnswerError) -> UnreachableError:
    return UnreachableError(
        f"no controller answers at {url} ({why})\n"
        "start one with `gpuward up`, or set GPUWARD_URL (--url) to its address"
    )


def refusal(url: str, answer: Answer) -> CliError:
    """The error for an answer that is not 2xx."""
    status = answer.status
    if status < 400:  # noqa: PLR2004 - a redirect
        where = answer.headers.get(_LOCATION, "elsewhere")
        return CliError(f"{url} redirects to {where}; set GPUWARD_URL (--url) to that address")
    error = _error_of(answer.content)
    if error is None:
        return not_gpuward(url, f"answers {status}")
    code, text, details = error
    problems = _problems(details)
    message = "\n".join([text, *(f"  {path or '(manifest)'}: {problem}" for path, problem in problems)])
    if status == 401:  # noqa: PLR2004 - unauthorized
        return RefusedError(f"{message}\nset GPUWARD_API_KEY (--api-key) to a valid key of {url}", code)
    if _is_without_route(status, text):
        older = f"{url}: this controller is older than this gpuward; upgrade the controller"
        return RefusedError(f"{url}: {text}\ncheck GPUWARD_URL (--url)" if _OTHER_PORT in text else older, code)
    if status == 404:  # noqa: PLR2004 - not found
        return NotFoundError(message, code)
    return RefusedError(message, code, problems)


def _is_without_route(status: int, text: str) -> bool:
    """True where the path or its method is missing: a newer API has all that this client requests."""
    missing = text.startswith(_NO_ROUTE) or _OTHER_PORT in text
    return status == 405 or (status == 404 and missing)  # noqa: PLR2004 - the statuses of missing routes


def _error_of(content: bytes) -> tuple[str, str, Mapping[str, Any]] | None:
    """Code, message and details of an error of the API; None: it is not an error of the API."""
    try:
        error = msgspec.json.decode(content)["error"]
        code, message, details = error["code"], error["message"], error.get("details", {})
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        return None
    valid = isinstance(code, str) and isinstance(message, str) and isinstance(details, dict)
    return (code, message, details) if valid else None


def _problems(details: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Path and message of the problems of a refused manifest. Other details are for programs."""
    problems = details.get("problems")
    if not isinstance(problems, list):
        return []
    return [
        (str(problem.get("path") or ""), str(problem.get("message", "")))
        for problem in problems
        if isinstance(problem, dict)
    ]
