"""How an answer travels: without what its caller may not read, with gzip where the client takes it, with an ETag.

One middleware does all of that for every complete answer of JSON or text, so that no route must think of it. Streams
are written piece by piece and never pass here: objects are redacted in `live/object_feed.py`, events in
`live_socket/topics.py`.

**Secrets.** The values of stored secrets are taken out of answers. A refusal repeats what its caller has sent, and
stays as it is: a guess must not be confirmed to callers that may know no secrets. So does the plan of a viewer, whose
handler has redacted all but what the viewer wrote. **Logs.** Lines of logs that messages quote are withheld from
callers that may read no logs.

**ETags.** An answer with an ETag or an encoding of its own stays as it is: the ETag of one deployment is its
generation, for `If-Match`. The ETags made here are weak, so that no `If-Match` can match one, and the
same for both encodings. A momentary answer gets none: no two are equal.
"""

import asyncio
import hashlib
import re
import zlib
from collections.abc import AsyncIterator, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from controller.api.context import CONTEXT, PRINCIPAL
from controller.api.middlewares import route_of
from controller.api.route import may_read_logs
from controller.domain.access.redaction import Redaction, shown_json

LEAST_BYTES: Final = 1024  # a shorter answer fits in one packet as it is
INLINE_BYTES: Final = 32 * 1024  # a longer one would hold up the loop for more than half a millisecond
_REDACTED_INLINE_BYTES: Final = 64 * 1024  # a longer answer would hold up the loop for more than a millisecond
MOST_BYTES: Final = 32 * 2**20  # a longer one would keep a thread for half a second
MOST_IN_THREADS: Final = 16  # answers; while there are more they travel as they are
_THREADS: Final = 2
_LEVEL: Final = 4  # 15 ms a MiB; the next ones take 20 % and 40 % longer, and make it 3 % and 4 % smaller
_GZIP: Final = 31  # zlib's number for the format
AS_WRITTEN: Final = web.RequestKey("AS_WRITTEN", bool)  # the handler has redacted what is not the caller's own
_OK: Final = 200
_NOT_MODIFIED: Final = 304
_REFUSED: Final = 400
_QUALITY: Final = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


def accepts_gzip(header: str) -> bool:
    """Whether an `Accept-Encoding` header allows gzip and likes it no less than the plain answer."""
    liked: dict[str, float] = {}
    for part in header.lower().split(","):
        coding, _, parameters = part.partition(";")
        liked[coding.strip().removeprefix("x-")] = _quality(parameters)
    gzip = liked.get("gzip", liked.get("*", 0.0))
    return gzip > 0 and gzip >= liked.get("identity", 0.0)


def _quality(parameters: str) -> float:
    """The `q` of a coding: 1 without one, 0 where it cannot be read."""
    for parameter in parameters.split(";"):
        name, mark, value = parameter.partition("=")
        if mark and name.strip() == "q":
            return float(value) if _QUALITY.fullmatch(value.strip()) else 0.0
    return 1.0


@dataclass(frozen=True, slots=True)
class _Work:
    """What there is to do for an answer.

    Attributes:
        body: of the answer.
        tags: it gets an ETag.
        packs: it may travel compressed.
        known: the ETags that the client has.
    """

    body: bytes
    tags: bool
    packs: bool
    known: Collection[str]

    def do(self) -> tuple[str, bytes | None]:
        """The answer's tag, empty without one, and its body as it travels; None: the client has it."""
        tag = hashlib.sha256(self.body).hexdigest()[:32] if self.tags else ""
        if tag and (tag in self.known or "*" in self.known):
            return tag, None
        if not self.packs:
            return tag, self.body
        packing = zlib.compressobj(_LEVEL, wbits=_GZIP)
        return tag, packing.compress(self.body) + packing.flush()


class Representation:
    """Does the work. Long answers have threads of their own, which no placement pass keeps busy."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="representation")
        self._in_threads = 0

    async def of(self, request: web.Request, response: web.Response, *, tags: bool = True) -> web.Response:
        """The answer as it travels. Without `tags` it gets no ETag."""
        body, headers = response.body, response.headers
        is_json = response.content_type == "application/json"
        if not (isinstance(body, bytes) and (is_json or response.content_type.startswith("text/"))):
            return response
        if "ETag" in headers or "Content-Encoding" in headers:
            return response
        headers.setdefault("Cache-Control", "private, no-cache")  # no shared cache keeps what one key may read
        compressible = len(body) >= LEAST_BYTES
        if compressible:
            headers.add("Vary", "Accept-Encoding")
        work = _Work(
            body,
            tags=tags and is_json and request.method == "GET" and response.status == _OK,
            packs=compressible and accepts_gzip(",".join(request.headers.getall("Accept-Encoding", ()))),
            known=[known.value for known in request.if_none_match or ()],
        )
        done = await self._done(work)
        if done is None:
            return response
        tag, travels = done
        if tag:
            headers["ETag"] = f'W/"{tag}"'
        if travels is None:
            kept = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
            return web.Response(status=_NOT_MODIFIED, headers=kept)
        if travels is not body:
            response.body = travels
            headers["Content-Encoding"] = "gzip"
        return response

    async def _done(self, work: _Work) -> tuple[str, bytes | None] | None:
        """The work's outcome; None: it would be too much now."""
        if len(work.body) <= INLINE_BYTES:
            return work.do()
        if len(work.body) > MOST_BYTES or self._in_threads >= MOST_IN_THREADS:
            return None
        self._in_threads += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work.do)
        finally:
            self._in_threads -= 1

    def close(self) -> None:
        """Ends the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)


REPRESENTATION: Final = web.AppKey("REPRESENTATION", Representation)


async def representation_context(app: web.Application) -> AsyncIterator[None]:
    """Holds the threads, and ends them with the app."""
    representation = app[REPRESENTATION] = Representation()
    try:
        yield
    finally:
        representation.close()


@web.middleware
async def represent(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives complete answers the form in which they travel; 304 to a client that has the same answer."""
    response = await handler(request)
    if not isinstance(response, web.Response) or response.prepared:
        return response
    redaction = request.app[CONTEXT].known_secrets.redaction()
    if redaction and response.status < _REFUSED and AS_WRITTEN not in request:
        await _redact(response, redaction)
    if isinstance(response.body, bytes):
        shown = as_shown(request, response.body)
        if shown is not response.body:
            response.body = shown
    route = route_of(request)
    return await request.app[REPRESENTATION].of(request, response, tags=route is None or not route.momentary)


async def _redact(response: web.Response, redaction: Redaction) -> None:
    """Takes the values of secrets out of an answer of JSON."""
    body = response.body
    if response.content_type != "application/json" or not isinstance(body, bytes):
        return
    inline = len(body) <= _REDACTED_INLINE_BYTES
    shown = redaction.shown(body) if inline else await asyncio.to_thread(redaction.shown, body)
    if shown is not body:
        response.body = shown


def as_shown(request: web.Request, body: bytes) -> bytes:
    """JSON as this caller gets it: without the lines of logs that it quotes, where the caller may read none."""
    principal = request.get(PRINCIPAL)
    viewers = request.app[CONTEXT].viewers_read_logs
    return shown_json(body, logs=principal is not None and may_read_logs(principal.role, viewers=viewers))
