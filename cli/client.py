"""The HTTP client. It returns objects as the API sent them, and raises the errors of `cli.errors`."""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from pydantic import ValidationError

from cli.api import Json
from cli.connection import Connection
from cli.errors import CliError, NotFoundError, RefusedError, UnreachableError
from schemas.api.envelopes import ErrorView
from schemas.version import __version__

CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
OUTCOME_HEADER: Final = "X-Gpuward-Outcome"
_MAX_PAGES: Final = 10_000
_STREAM_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
_CHUNK_BYTES: Final = 64 * 1024


class Api:
    """Requests to one controller. Every method raises the errors of `cli.errors`."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        """`session` is open; the caller closes it."""
        self._session = session
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
            left = None if limit is None else limit - len(found)
            page = await self._call("GET", path, query={**query, "limit": left, "cursor": cursor})
            found.extend(page.get("items", []))
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

    async def post(self, path: str, body: Json | None = None) -> Json:
        """Posts a body, or requests an action without one."""
        return await self._call("POST", path, body=body)

    async def patch(self, path: str, body: Json) -> Json:
        """Changes fields of an object."""
        return await self._call("PATCH", path, body=body)

    async def delete(self, path: str, **query: str | int | None) -> Json:
        """Deletes an object."""
        return await self._call("DELETE", path, query=query)

    async def stream(self, path: str, **query: str | int | None) -> AsyncIterator[bytes]:
        """The chunks of a body as they arrive. There is no deadline, since a log may be silent for hours."""
        try:
            async with self._session.get(
                self.url + path, params=_query(query), timeout=_STREAM_TIMEOUT, allow_redirects=False
            ) as response:
                if response.status >= 300:  # noqa: PLR2004 - only 2xx carries the stream
                    raise _refusal(self.url, response, await response.read())
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unreachable(self.url, error) from error

    async def _call(
        self, method: str, path: str, *, query: Mapping[str, str | int | None] | None = None, body: Json | None = None
    ) -> Json:
        return (await self._exchange(method, path, query=query, body=body))[0]

    async def _exchange(
        self, method: str, path: str, *, query: Mapping[str, str | int | None] | None = None, body: Json | None = None
    ) -> tuple[Json, Mapping[str, str]]:
        try:
            async with self._session.request(
                method, self.url + path, params=_query(query or {}), json=body, allow_redirects=False
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unreachable(self.url, error) from error
        if response.status >= 300:  # noqa: PLR2004 - only 2xx is an answer
            raise _refusal(self.url, response, content)
        return (_object(self.url, content) if content.strip() else {}), response.headers


@asynccontextmanager
async def connect(connection: Connection) -> AsyncIterator[Api]:
    """An open client. It has not made a request yet."""
    headers = {"User-Agent": f"gpuward/{__version__}", "Accept": "application/json"}
    if connection.key is not None:
        headers["Authorization"] = f"Bearer {connection.key}"
    timeout = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
        yield Api(session, connection.url)


def _query(query: Mapping[str, str | int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in query.items() if value is not None}


def _object(url: str, content: bytes) -> Json:
    try:
        answer = json.loads(content)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise CliError(f"{url} answers, but it is not a Gpuward controller; check GPUWARD_URL (--url)")
    return answer


def _unreachable(url: str, error: Exception) -> UnreachableError:
    if isinstance(error, TimeoutError):
        why = "no answer in time"
    elif isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno is not None:
        why = os.strerror(error.os_error.errno).lower() if error.os_error.errno > 0 else str(error.os_error)
    else:
        why = str(error) or type(error).__name__
    return UnreachableError(
        f"no controller answers at {url} ({why})\n"
        "start one with `gpuward up`, or set GPUWARD_URL (--url) to its address"
    )


def _refusal(url: str, response: aiohttp.ClientResponse, content: bytes) -> CliError:
    status = response.status
    if status < 400:  # noqa: PLR2004 - a redirect
        where = response.headers.get("Location", "elsewhere")
        return CliError(f"{url} redirects to {where}; set GPUWARD_URL (--url) to that address")
    try:
        body = ErrorView.model_validate_json(content).error
    except ValidationError:
        return CliError(f"{url} answers {status}, but it is not a Gpuward controller; check GPUWARD_URL (--url)")
    message = "\n".join([body.message, *_details(body.details)])
    if status == 401:  # noqa: PLR2004 - unauthorized
        return RefusedError(f"{message}\nset GPUWARD_API_KEY (--api-key) to a valid key of {url}", body.code)
    if status == 404:  # noqa: PLR2004 - not found
        return NotFoundError(message, body.code)
    return RefusedError(message, body.code)


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
