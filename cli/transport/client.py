"""The client of the API. It returns objects as the API sent them, and raises the errors of `cli.errors`."""

import json
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from cli.errors import CliError, NotFoundError, RefusedError, UnreachableError
from cli.transport.paths import Json
from schemas.version import __version__

CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
OUTCOME_HEADER: Final = "x-gpuward-outcome"
CHUNK_BYTES: Final = 64 * 1024
_MAX_PAGES: Final = 10_000
_MAX_PAGE: Final = 1000  # objects; the API refuses to send more at once
_LOCATION: Final = "location"
_NO_ROUTE: Final = "unknown path"  # begins the message of the API; an object that does not exist has another one
_OTHER_DOOR: Final = "no such path"  # in the message of a gateway below /v1, and of an agent
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
HEADERS: Final = {"User-Agent": f"gpuward/{__version__}", "Accept": "application/json"}


class Answer(NamedTuple):
    """An answer of the server: its status, its headers by their names in lower case, and its body."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class NoAnswerError(Exception):
    """The server cannot be reached, or did not answer in time; the message says why.

    Attributes:
        sent: whether a part of the request may have reached it.
    """

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class Transport(Protocol):
    """Carries requests to one server. Every method raises `NoAnswerError`."""

    async def exchange(
        self,
        method: str,
        target: str,
        query: Mapping[str, str],
        body: bytes | None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Answer:
        """One request and its answer. Redirects are not followed. `target`: a path; `headers`: more than the usual."""

    def stream(self, target: str, query: Mapping[str, str], body: bytes | None = None) -> AsyncIterator[Answer | bytes]:
        """A refusal; or the chunks of a body as they arrive, without a deadline. With a body the request is a POST."""


class Api:
    """Requests to one controller. Every method raises the errors of `cli.errors`."""

    def __init__(self, transport: Transport, url: str) -> None:
        """`transport` is open; the caller closes it. `url`: of the server, as messages name it."""
        self.transport = transport
        self.url = url

    async def get(self, path: str, **query: str | int | None) -> Json:
        """Reads an object."""
        return await self._call("GET", path, query=query)

    async def find(self, path: str) -> Json | None:
        """Reads an object; None if it does not exist."""
        try:
            return await self._call("GET", path)
        except NotFoundError:
            return None

    async def items(self, path: str, *, limit: int | None = None, **query: str | int | None) -> list[Json]:
        """Reads all pages of a list, up to `limit` items."""
        found: list[Json] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            left = None if limit is None else min(limit - len(found), _MAX_PAGE)
            page = await self._call("GET", path, query={**query, "limit": left, "cursor": cursor})
            items = page.get("items", [])
            if not isinstance(items, list):
                raise _not_gpuward(self.url, "answers")
            found.extend(items)
            cursor = page.get("next")
            if not cursor or (limit is not None and len(found) >= limit):
                return found[:limit]
        raise CliError(f"{self.url}{path}: the list is too long; narrow it with a filter")

    async def put(self, path: str, body: Json) -> Json:
        """Creates or replaces an object."""
        return (await self.apply(path, body))[0]

    async def apply(self, path: str, body: Json) -> tuple[Json, str]:
        """Creates or replaces an object; returns it and the outcome, such as `created` or `unchanged`."""
        answer, headers = await self._exchange("PUT", path, body=body)
        return answer, headers.get(OUTCOME_HEADER, "applied")

    async def post(self, path: str, body: Json | None = None, **query: str | int | None) -> Json:
        """Posts a body, or requests an action without one."""
        return await self._call("POST", path, query=query, body=body)

    async def patch(self, path: str, body: Json) -> Json:
        """Changes fields of an object."""
        return await self._call("PATCH", path, body=body)

    async def delete(self, path: str, *, generation: int | None = None, **query: str | int | None) -> Json:
        """Deletes an object. With a `generation` the API refuses where the object has another one."""
        headers = NO_HEADERS if generation is None else {"If-Match": str(generation)}
        return (await self._exchange("DELETE", path, query=query, headers=headers))[0]

    async def stream(self, path: str, *, body: Json | None = None, **query: str | int | None) -> AsyncIterator[bytes]:
        """The chunks of a body as they arrive. There is no deadline, since a log may be silent for hours.

        With a `body` the request is a POST.
        """
        content = None if body is None else json.dumps(body).encode()
        begun = False
        try:
            async for part in self.transport.stream(path, _query(query), content):
                if isinstance(part, Answer):
                    raise _refusal(self.url, part)
                begun = True
                yield part
        except NoAnswerError as error:
            if begun:
                raise UnreachableError(f"the connection to {self.url} has ended") from error
            raise _unreachable(self.url, error) from error

    async def _call(
        self, method: str, path: str, *, query: Mapping[str, str | int | None] | None = None, body: Json | None = None
    ) -> Json:
        return (await self._exchange(method, path, query=query, body=body))[0]

    async def _exchange(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | None] | None = None,
        body: Json | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[Json, Mapping[str, str]]:
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = await self.transport.exchange(method, path, _query(query or {}), content, headers)
        except NoAnswerError as error:
            raise _unreachable(self.url, error) from error
        if answer.status >= 300:  # noqa: PLR2004 - only 2xx is an answer
            raise _refusal(self.url, answer)
        return (_object(self.url, answer.content) if answer.content.strip() else {}), answer.headers


def _query(query: Mapping[str, str | int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in query.items() if value is not None}


def _object(url: str, content: bytes) -> Json:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _not_gpuward(url, "answers")
    return answer


def _not_gpuward(url: str, does: str) -> CliError:
    return CliError(f"{url} {does}, but it is not a Gpuward controller; check GPUWARD_URL (--url)")


def _unreachable(url: str, why: NoAnswerError) -> UnreachableError:
    return UnreachableError(
        f"no controller answers at {url} ({why})\n"
        "start one with `gpuward up`, or set GPUWARD_URL (--url) to its address"
    )


def _refusal(url: str, answer: Answer) -> CliError:
    status = answer.status
    if status < 400:  # noqa: PLR2004 - a redirect
        where = answer.headers.get(_LOCATION, "elsewhere")
        return CliError(f"{url} redirects to {where}; set GPUWARD_URL (--url) to that address")
    error = _error_of(answer.content)
    if error is None:
        return _not_gpuward(url, f"answers {status}")
    code, said, details = error
    message = "\n".join([said, *_details(details)])
    if status == 401:  # noqa: PLR2004 - unauthorized
        return RefusedError(f"{message}\nset GPUWARD_API_KEY (--api-key) to a valid key of {url}", code)
    if _is_without_route(status, said):
        older = f"{url}: this controller is older than this gpuward; upgrade the controller"
        return RefusedError(f"{url}: {said}\ncheck GPUWARD_URL (--url)" if _OTHER_DOOR in said else older, code)
    if status == 404:  # noqa: PLR2004 - not found
        return NotFoundError(message, code)
    return RefusedError(message, code)


def _is_without_route(status: int, said: str) -> bool:
    """Whether the path or its method is missing, which a newer API has: all that this client asks for exists."""
    missing = said.startswith(_NO_ROUTE) or _OTHER_DOOR in said
    return status == 405 or (status == 404 and missing)  # noqa: PLR2004 - the two of routes


def _error_of(content: bytes) -> tuple[str, str, Mapping[str, Any]] | None:
    """Code, message and details of the API's error; None: it is not one."""
    try:
        error = json.loads(content)["error"]
        code, message, details = error["code"], error["message"], error.get("details", {})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    valid = isinstance(code, str) and isinstance(message, str) and isinstance(details, dict)
    return (code, message, details) if valid else None


def _details(details: Mapping[str, Any]) -> list[str]:
    """The problems of a refused manifest, one per line. Other details are for programs."""
    problems = details.get("problems")
    if not isinstance(problems, list):
        return []
    return [
        f"  {problem.get('path') or '(manifest)'}: {problem.get('message', '')}"
        for problem in problems
        if isinstance(problem, dict)
    ]
