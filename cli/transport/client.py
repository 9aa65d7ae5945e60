"""The client of the API. It returns objects as the API sent them, and raises the errors of `cli.errors`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Final
from urllib.parse import urlencode

import msgspec

from cli.errors import CliError, NotFoundError, UnreachableError
from cli.transport.answers import not_gpuward, object_of, refusal, unreachable
from cli.transport.connection import Connection
from cli.transport.near_names import did_you_mean, like, named_in
from cli.transport.paths import API, Json
from cli.transport.servers import Answer, NoAnswerError, Request, Servers

OUTCOME_HEADER: Final = "x-gpuward-outcome"
_EMPTY: Final = MappingProxyType[str, str]({})
_MAX_PAGES: Final = 10_000
_MAX_PAGE: Final = 1000  # objects; the API refuses to send more at once


class Api:
    """Every method raises the errors of `cli.errors`."""

    def __init__(self, servers: Servers, url: str) -> None:
        """`url`: of the servers, as messages name it."""
        self.servers = servers
        self.url = url
        self._listed: dict[str, list[Json]] = {}  # for hints: once for each kind, however many names are wrong
        self.deadline = float("inf")  # of each answer, by `time.monotonic()`; a request has a shorter one, too

    def for_thread(self) -> "Api":
        """See `Servers.for_thread`."""
        return Api(self.servers.for_thread(), self.url)

    def get(self, path: str, **query: str | int | None) -> Json:
        return self._call("GET", path, query)[0]

    def find(self, path: str) -> Json | None:
        """None if the object does not exist."""
        try:
            return self._exchange("GET", path)[0]
        except NotFoundError:
            return None

    def items(self, path: str, *, limit: int | None = None, **query: str | int | None) -> list[Json]:
        """All pages of a list, up to `limit` items."""
        items: list[Json] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            left = None if limit is None else min(limit - len(items), _MAX_PAGE)
            page = self.get(path, **{**query, "limit": left, "cursor": cursor})
            new = page.get("items", [])
            if not isinstance(new, list):
                raise not_gpuward(self.url, "answers")
            items.extend(new)
            cursor = page.get("next")
            if not cursor or (limit is not None and len(items) >= limit):
                return items[:limit]
        raise CliError(f"{self.url}{path}: the list is too long; narrow it with a filter")

    def put(self, path: str, body: Json) -> Json:
        return self.apply(path, body)[0]

    def apply(self, path: str, body: Json) -> tuple[Json, str]:
        """Creates or replaces an object; returns it and the outcome, such as `created` or `unchanged`."""
        answer, headers = self._call("PUT", path, body=body)
        return answer, headers.get(OUTCOME_HEADER, "applied")

    def post(self, path: str, body: Json | None = None, **query: str | int | None) -> Json:
        return self._call("POST", path, query, body)[0]

    def patch(self, path: str, body: Json) -> Json:
        return self._call("PATCH", path, body=body)[0]

    def delete(
        self, path: str, *, generation: int | None = None, hints: bool = True, **query: str | int | None
    ) -> Json:
        """With a `generation` the API refuses to delete an object that has another one. `hints`: see `_call`."""
        headers = {} if generation is None else {"If-Match": str(generation)}
        return self._call("DELETE", path, query, headers=headers, hints=hints)[0]

    def stream(
        self, path: str, *, body: Json | None = None, silence_s: float | None = None, **query: str | int | None
    ) -> Iterator[bytes]:
        """The chunks of a body as they arrive. With a `body` the request is a POST.

        `silence_s`: the longest time between two chunks. None: any, since a log may be silent for hours.
        """
        started = False
        request = _request("GET" if body is None else "POST", path, query, body)
        try:
            for part in self.servers.stream(request, silence_s=silence_s):
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
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int | None] = _EMPTY,
        body: Json | None = None,
        headers: Mapping[str, str] = _EMPTY,
        *,
        hints: bool = True,
    ) -> tuple[Json, Mapping[str, str]]:
        """`hints`: where the object does not exist, the error has the names that are like it."""
        try:
            return self._exchange(method, path, query, body, headers)
        except NotFoundError as error:
            if not hints:
                raise
            raise NotFoundError(f"{error}{self._hint(path)}", error.code) from None

    def _hint(self, path: str) -> str:
        named = named_in(path)
        if named is None:
            return ""
        of, name = named
        if of not in self._listed:
            self._listed[of] = []
            with suppress(CliError):  # such as a key that may not list them: the first error counts
                self._listed[of] = self._exchange("GET", f"{API}/{of}", {"limit": _MAX_PAGE})[0].get("items", [])
        return did_you_mean(like(name, self._listed[of]))

    def _exchange(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int | None] = _EMPTY,
        body: Json | None = None,
        headers: Mapping[str, str] = _EMPTY,
    ) -> tuple[Json, Mapping[str, str]]:
        try:
            answer = self.servers.exchange(_request(method, path, query, body, headers), until=self.deadline)
        except NoAnswerError as error:
            raise unreachable(self.url, error) from error
        if answer.status >= 300:  # noqa: PLR2004 - only 2xx is an answer
            raise refusal(self.url, answer)
        return object_of(self.url, answer.content), answer.headers


def _request(
    method: str,
    path: str,
    query: Mapping[str, str | int | None],
    body: Json | None,
    headers: Mapping[str, str] = _EMPTY,
) -> Request:
    given = {name: str(value) for name, value in query.items() if value is not None}
    target = f"{path}?{urlencode(given)}" if given else path
    return Request(method, target, None if body is None else msgspec.json.encode(body), headers)


@contextmanager
def connected(connection: Connection) -> Iterator[Api]:
    """A client, which has not made a request yet. Raises `UsageError` as `Server`."""
    servers = Servers.of(connection)
    try:
        yield Api(servers, " or ".join(connection.urls))
    finally:
        servers.close()
