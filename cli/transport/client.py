"""The client of the API. It returns objects as the API sent them, and raises the errors of `cli.errors`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec

from cli.errors import CliError, NotFoundError, UnreachableError
from cli.transport.answers import NO_HEADERS, Answer, NoAnswerError, not_gpuward, object_of, refusal, unreachable
from cli.transport.connection import Connection
from cli.transport.one_server import Server
from cli.transport.paths import Json
from cli.transport.several_servers import Servers

OUTCOME_HEADER: Final = "x-gpuward-outcome"
_MAX_PAGES: Final = 10_000
_MAX_PAGE: Final = 1000  # objects; the API refuses to send more at once


class Api:
    """Requests to one controller. Every method raises the errors of `cli.errors`."""

    def __init__(self, servers: Servers, url: str) -> None:
        """`url`: of the servers, as messages name it."""
        self.servers = servers
        self.url = url
        self.deadline = float("inf")  # of each answer, by `time.monotonic()`; a request has a shorter one, too

    def get(self, path: str, **query: str | int | None) -> Json:
        """Reads an object."""
        return self._call("GET", path, query=query)

    def find(self, path: str) -> Json | None:
        """Reads an object; None if it does not exist."""
        try:
            return self._call("GET", path)
        except NotFoundError:
            return None

    def items(self, path: str, *, limit: int | None = None, **query: str | int | None) -> list[Json]:
        """Reads all pages of a list, up to `limit` items."""
        found: list[Json] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            left = None if limit is None else min(limit - len(found), _MAX_PAGE)
            page = self._call("GET", path, query={**query, "limit": left, "cursor": cursor})
            items = page.get("items", [])
            if not isinstance(items, list):
                raise not_gpuward(self.url, "answers")
            found.extend(items)
            cursor = page.get("next")
            if not cursor or (limit is not None and len(found) >= limit):
                return found[:limit]
        raise CliError(f"{self.url}{path}: the list is too long; narrow it with a filter")

    def put(self, path: str, body: Json) -> Json:
        """Creates or replaces an object."""
        return self.apply(path, body)[0]

    def apply(self, path: str, body: Json) -> tuple[Json, str]:
        """Creates or replaces an object; returns it and the outcome, such as `created` or `unchanged`."""
        answer, headers = self._exchange("PUT", path, body=body)
        return answer, headers.get(OUTCOME_HEADER, "applied")

    def post(self, path: str, body: Json | None = None, **query: str | int | None) -> Json:
        """Posts a body, or requests an action without one."""
        return self._call("POST", path, query=query, body=body)

    def patch(self, path: str, body: Json) -> Json:
        """Changes fields of an object."""
        return self._call("PATCH", path, body=body)

    def delete(self, path: str, *, generation: int | None = None, **query: str | int | None) -> Json:
        """Deletes an object. With a `generation` the API refuses where the object has another one."""
        headers = NO_HEADERS if generation is None else {"If-Match": str(generation)}
        return self._exchange("DELETE", path, query=query, headers=headers)[0]

    def stream(
        self, path: str, *, body: Json | None = None, silence_s: float | None = None, **query: str | int | None
    ) -> Iterator[bytes]:
        """The chunks of a body as they arrive. With a `body` the request is a POST.

        `silence_s`: the longest time between two chunks. None: any, since a log may be silent for hours.
        """
        started = False
        try:
            for part in self.servers.stream(path, _query(query), _content(body), silence_s=silence_s):
                if isinstance(part, Answer):
                    raise refusal(self.url, part)
                started = True
                yield part
        except NoAnswerError as error:
            if not started:
                raise unreachable(self.url, error) from error
            silent = isinstance(error.__cause__, TimeoutError)
            why = f"{self.url} is silent for {silence_s:g} s" if silent else f"the connection to {self.url} has ended"
            raise UnreachableError(why) from error

    def _call(
        self, method: str, path: str, *, query: Mapping[str, str | int | None] | None = None, body: Json | None = None
    ) -> Json:
        return self._exchange(method, path, query=query, body=body)[0]

    def _exchange(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | None] | None = None,
        body: Json | None = None,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> tuple[Json, Mapping[str, str]]:
        try:
            answer = self.servers.exchange(
                method, path, _query(query or {}), _content(body), headers, until=self.deadline
            )
        except NoAnswerError as error:
            raise unreachable(self.url, error) from error
        if answer.status >= 300:  # noqa: PLR2004 - only 2xx is an answer
            raise refusal(self.url, answer)
        return object_of(self.url, answer.content), answer.headers


def _content(body: Json | None) -> bytes | None:
    return None if body is None else msgspec.json.encode(body)


def _query(query: Mapping[str, str | int | None]) -> dict[str, str]:
    return {name: str(value) for name, value in query.items() if value is not None}


@contextmanager
def connected(connection: Connection) -> Iterator[Api]:
    """A client, which has not made a request yet.

    Raises:
        UsageError: see `Server` and `client_context`.
    """
    servers = Servers([Server(url, connection.key, connection.ca) for url in connection.urls])
    try:
        yield Api(servers, " or ".join(connection.urls))
    finally:
        servers.close()
