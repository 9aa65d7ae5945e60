"""Bodies: a request's is bounded and validated field by field; an answer's is redacted, compressed and tagged.

One middleware, `represent`, prepares every complete answer of JSON or text, so that no route has to. Streams do not
pass it: `live/object_feed.py` redacts objects, `live_socket/topics.py` events.

**Secrets.** The values of stored secrets are removed from answers. A refusal repeats the caller's own input and stays
unchanged, because redacting it would confirm a guess to callers that may know no secrets. So does a viewer's plan,
whose handler has redacted everything but the viewer's input. **Logs.** Lines of logs that messages quote are withheld
from callers that may read no logs.

**ETags.** An answer that has an ETag or an encoding stays unchanged: the ETag of a deployment is its generation, for
`If-Match`. The ETags made here are weak, so that no `If-Match` can match one, and equal for both encodings. A
momentary answer gets none, since no two are equal.
"""

import asyncio
import hashlib
import io
import re
import zlib
from collections.abc import AsyncIterator, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ValidationError

from controller.api.context import BODY, CONTEXT, PRINCIPAL
from controller.api.errors import ApiError
from controller.api.middlewares import may_read_logs, route_of
from controller.domain.access.redaction import Redaction, shown_json
from schemas.api.view import View, to_json
from schemas.manifest.problems import (
    MOST_PROBLEMS,
    FieldProblem,
    ManifestError,
    from_validation,
    most_specific,
    unknown_keys,
)
from schemas.manifest.strict_yaml import read_json

MAX_BODY_BYTES: Final = 2**20
M = TypeVar("M", bound=BaseModel)
_NOT_AN_OBJECT: Final = "must be one JSON object"
LEAST_BYTES: Final = 1024  # a shorter answer fits in one packet uncompressed
INLINE_BYTES: Final = 32 * 1024  # a longer answer would block the loop for more than half a millisecond
_REDACTED_INLINE_BYTES: Final = 64 * 1024  # a longer answer would block the loop for more than a millisecond
MOST_BYTES: Final = 32 * 2**20  # a longer answer would occupy a thread for half a second
MOST_IN_THREADS: Final = 16  # answers; more are sent uncompressed and without an ETag
_THREADS: Final = 2
_LEVEL: Final = 4  # 15 ms a MiB; levels 5 and 6 take 20 % and 40 % longer for 3 % and 4 % less
_GZIP: Final = 31  # zlib's number for the format
AS_WRITTEN: Final = web.RequestKey("AS_WRITTEN", bool)  # the handler has redacted all but the caller's own input
_OK: Final = 200
_NOT_MODIFIED: Final = 304
_REFUSED: Final = 400
_QUALITY: Final = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


async def read_body(request: web.Request, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Reads the body, up to the limit.

    Raises:
        ApiError: 413 for a larger body, 415 for a compressed one, 400 for one that breaks off.
        BodiesFullError: too many bytes of bodies are in flight.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"Content-Encoding: {encoding} is not supported here; send the body uncompressed"
        raise ApiError(415, "unsupported_encoding", message)
    declared = request.content_length
    if declared is not None and declared > limit_bytes:
        raise _too_large(limit_bytes)
    hold = request[BODY]
    hold.take_up_to(declared or 0)  # refused before the client sends it, not in the middle
    body = io.BytesIO()  # getvalue() makes no copy
    try:
        async for chunk in request.content.iter_any():
            size = body.tell() + len(chunk)
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            hold.take_up_to(size)
            body.write(chunk)
    except web.RequestPayloadError as error:
        raise ApiError(400, "invalid", f"body: incomplete or badly encoded: {error}") from error
    return body.getvalue()


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, "too_large", f"body: larger than {limit_bytes} bytes; split it or make it smaller")


async def read_model(
    request: web.Request, model: type[M], *, optional: bool = False, limit_bytes: int = MAX_BODY_BYTES
) -> M:
    """Reads and validates the body. `optional`: an empty body gives the model's defaults.

    Raises:
        ManifestError: names every invalid field.
    """
    return parse_model(await read_body(request, limit_bytes), model, optional=optional)


def parse_model(body: bytes, model: type[M], *, optional: bool = False) -> M:
    """Like `read_model`, from a body that is read already.

    Raises:
        ManifestError: names every invalid field.
    """
    value = {} if optional and not body.strip() else read_json(body)
    if not isinstance(value, dict):
        raise ManifestError([FieldProblem("", _NOT_AN_OBJECT)])
    problems = list(islice(unknown_keys(model, value), MOST_PROBLEMS + 1))
    try:
        parsed = model.model_validate(value)
    except ValidationError as error:
        problems.extend(from_validation(error, value))
        raise ManifestError(most_specific(problems)) from error
    if problems:
        raise ManifestError(most_specific(problems))
    return parsed


def json_response(view: View, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(status=status, body=to_json(view), content_type="application/json", headers=headers)


def accepts_gzip(header: str) -> bool:
    """Whether an `Accept-Encoding` header allows gzip and prefers it to the plain answer, or has no preference."""
    qualities: dict[str, float] = {}
    for part in header.lower().split(","):
        coding, _, parameters = part.partition(";")
        qualities[coding.strip().removeprefix("x-")] = _quality(parameters)
    gzip = qualities.get("gzip", qualities.get("*", 0.0))
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


def _quality(parameters: str) -> float:
    """The `q` of a coding: 1 if absent, 0 if invalid."""
    for parameter in parameters.split(";"):
        name, mark, value = parameter.partition("=")
        if mark and name.strip() == "q":
            return float(value) if _QUALITY.fullmatch(value.strip()) else 0.0
    return 1.0


@dataclass(frozen=True, slots=True)
class _Work:
    """The tagging and compression of one answer. `known`: the ETags that the client has."""

    body: bytes
    tags: bool
    packs: bool
    known: Collection[str]

    def do(self) -> tuple[str, bytes | None]:
        """Returns the tag, empty if the answer gets none, and the body to send; None: the client has it."""
        tag = hashlib.sha256(self.body).hexdigest()[:32] if self.tags else ""
        if tag and (tag in self.known or "*" in self.known):
            return tag, None
        if not self.packs:
            return tag, self.body
        packing = zlib.compressobj(_LEVEL, wbits=_GZIP)
        return tag, packing.compress(self.body) + packing.flush()


class Representation:
    """Tags and compresses answers. Long answers have threads of their own, which no placement pass occupies."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="representation")
        self._in_threads = 0

    async def of(self, request: web.Request, response: web.Response, *, tags: bool = True) -> web.Response:
        body, headers = response.body, response.headers
        is_json = response.content_type == "application/json"
        if not (isinstance(body, bytes) and (is_json or response.content_type.startswith("text/"))):
            return response
        if "ETag" in headers or "Content-Encoding" in headers:
            return response
        headers.setdefault("Cache-Control", "private, no-cache")  # answers differ by key: no shared cache may keep them
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
        tag, sent = done
        if tag:
            headers["ETag"] = f'W/"{tag}"'
        if sent is None:
            kept = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
            return web.Response(status=_NOT_MODIFIED, headers=kept)
        if sent is not body:
            response.body = sent
            headers["Content-Encoding"] = "gzip"
        return response

    async def _done(self, work: _Work) -> tuple[str, bytes | None] | None:
        """The result; None: the answer is too long, or the threads are busy."""
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
        self._threads.shutdown(wait=False, cancel_futures=True)


REPRESENTATION: Final = web.AppKey("REPRESENTATION", Representation)


async def representation_context(app: web.Application) -> AsyncIterator[None]:
    representation = app[REPRESENTATION] = Representation()
    try:
        yield
    finally:
        representation.close()


@web.middleware
async def represent(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Redacts, tags and compresses complete answers; answers 304 to a client that has the same answer."""
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
    body = response.body
    if response.content_type != "application/json" or not isinstance(body, bytes):
        return
    inline = len(body) <= _REDACTED_INLINE_BYTES
    shown = redaction.shown(body) if inline else await asyncio.to_thread(redaction.shown, body)
    if shown is not body:
        response.body = shown


def as_shown(request: web.Request, body: bytes) -> bytes:
    """JSON for this caller: without quoted lines of logs if the caller may read no logs."""
    principal = request.get(PRINCIPAL)
    viewers = request.app[CONTEXT].viewers_read_logs
    return shown_json(body, logs=principal is not None and may_read_logs(principal.role, viewers=viewers))
