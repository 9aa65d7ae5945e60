"""The engine: it validates requests, queues them for a slot, and answers as its behaviour requires."""

import asyncio
import hashlib
import json
import os
import signal
import time
import zlib
from collections.abc import AsyncIterator
from typing import Any, Final

from rig.engine.behaviour import Behaviour
from rig.engine.counters import Counters, Taken, digest
from rig.engine.endpoints import ENDPOINTS, Endpoint
from rig.engine.errors import BadRequestError, UnknownModelError
from rig.engine.exchange import Answer, Request
from rig.engine.generation import JSON, Form, Generation, tokens_of
from rig.engine.multipart import read_form
from rig.engine.names import Names

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_TYPES: Final = {400: "invalid_request_error", 404: "not_found_error", 429: "rate_limit_error"}
_AT_ONCE: Final = 32  # tokens, before other requests have their turn
_UNLIMITED: Final = 2**31


class Engine:
    """Answers requests.

    Args:
        names: the model's.
        behaviour: for requests without settings of their own.
        load_seconds: until then every request is refused with 503.
        slots: how many requests are answered at once; others wait in their order. 0: all.
        kv_tokens: how many tokens of prompts and answers fill the KV cache.
        without: paths that it does not serve.
        hang_after: number of requests after which it generates nothing, while its port answers; None: never.
    """

    def __init__(
        self,
        names: Names,
        behaviour: Behaviour,
        *,
        load_seconds: float = 0.0,
        slots: int = 0,
        kv_tokens: int = 0,
        without: frozenset[str] = frozenset(),
        hang_after: int | None = None,
    ) -> None:
        self._hang_after = hang_after
        self._hangs = False
        self._names = names
        self._behaviour = behaviour
        self._loaded_at = time.monotonic() + load_seconds
        self._slots = asyncio.Semaphore(slots or _UNLIMITED)
        self._kv_tokens = kv_tokens
        self._endpoints = {path: endpoint for path, endpoint in ENDPOINTS.items() if path not in without}
        self._count = 0
        self.counters = Counters()

    async def handle(self, request: Request, answer: Answer) -> None:
        endpoint = self._endpoints.get(request.path)
        if endpoint is None:
            self._look_up(request, answer)
        elif request.method != "POST":
            body = json.dumps({"detail": "Method Not Allowed"}).encode()
            answer.send(405, [("Allow", "POST"), ("Content-Type", JSON)], body)
        else:
            await self._count_request(request, answer, endpoint)

    def _look_up(self, request: Request, answer: Answer) -> None:
        path, counters = request.path, self.counters
        if request.method not in ("GET", "HEAD"):
            _send(answer, 404, {"detail": "Not Found"})
        elif path == "/metrics":
            text = counters.metrics((self._names.served or (self._names.model,))[0], self._kv_tokens)
            answer.send(200, [("Content-Type", _METRICS_TYPE)], text.encode())
        elif path == "/simulated/counters":
            _send(answer, 200, counters.as_json())
        elif path == "/simulated/last-body" and counters.last.body is not None:
            answer.send(200, [("Content-Type", "application/octet-stream")], counters.last.body)
        elif path in ("/health", "/v1/models") and time.monotonic() < self._loaded_at:
            _refuse(answer, 503, "the model is still loading")
        elif path == "/health":
            _send(answer, 200, {"status": "ok"})
        elif path == "/v1/models":
            _send(answer, 200, {"object": "list", "data": self._names.cards()})
        else:
            _send(answer, 404, {"detail": "Not Found"})

    async def _count_request(self, request: Request, answer: Answer, endpoint: Endpoint) -> None:
        counters = self.counters
        counters.taken += 1
        counters.by_path[request.path] += 1
        try:
            await self._answer(request, answer, endpoint)
        except asyncio.CancelledError:
            counters.cancelled += 1
            raise
        except BadRequestError as error:
            _refuse(answer, 400, str(error), error.param, anthropic=endpoint.anthropic)
        except UnknownModelError as error:
            _refuse(answer, 404, str(error), "model", anthropic=endpoint.anthropic)
        counters.finished += 1

    async def _answer(self, request: Request, answer: Answer, endpoint: Endpoint) -> None:
        counters = self.counters
        if time.monotonic() < self._loaded_at:
            counters.refused += 1
            _refuse(answer, 503, "the model is still loading", anthropic=endpoint.anthropic)
            return
        counters.reading += 1
        try:
            ask = endpoint.ask(await self._content(request, endpoint))
        finally:
            counters.reading -= 1
        if not self._names.has(ask.model):
            raise UnknownModelError(f"The model `{ask.model}` does not exist.")
        behaviour = self._behaviour.steered_by(ask.prompt)
        if behaviour.refuse is not None:
            counters.refused += 1
            counters.journal.note("refused", behaviour.id)
            _refuse(answer, behaviour.refuse, "the engine was told to refuse", anthropic=endpoint.anthropic)
            if behaviour.die == 0:
                await _die(answer)
            return
        taken = counters.journal.take(behaviour.id)
        self._hangs = (
            self._hangs or behaviour.hang or (self._hang_after is not None and self._count >= self._hang_after)
        )
        self._count += 1
        generation = Generation(
            f"{os.getpid()}-{self._count}", int(time.time()), ask,
            tokens_of(ask, behaviour.tokens) if endpoint.generates else 0,
            behaviour.token_bytes, behaviour.tokens is not None, behaviour.usage, behaviour.cached,
        )  # fmt: skip
        try:
            await self._in_a_slot(_Writer(request, answer, behaviour, taken), endpoint.form(generation), generation)
        finally:
            taken.leave()

    async def _content(self, request: Request, endpoint: Endpoint) -> Any:
        """The body as JSON, or the form, which becomes the last request."""
        if endpoint.is_form:
            body = _Digested(request.body.chunks())
            form = await read_form(request.header("content-type"), body)
            self.counters.keep(request.path, request.headers, body.size, body.digest.hexdigest(), None)
            return form
        read = b"".join([chunk async for chunk in request.body.chunks()])
        self.counters.keep(request.path, request.headers, len(read), digest(read), read)
        try:
            return json.loads(read)
        except ValueError:
            raise BadRequestError(None, "the body is not valid JSON") from None

    async def _in_a_slot(self, writer: "_Writer", form: Form, generation: Generation) -> None:
        counters, held = self.counters, generation.ask.prompt_tokens
        counters.queued += 1
        try:
            await self._slots.acquire()
        finally:
            counters.queued -= 1
        counters.running += 1
        counters.most_running = max(counters.most_running, counters.running)
        counters.held_tokens += held
        try:
            await writer.begin()
            await self._unless_it_hangs()
            counters.prompt_tokens += held
            if not generation.ask.stream:
                async for made in writer.produce(generation.tokens):
                    await self._unless_it_hangs()
                    counters.generation_tokens += made
                await writer.send_complete(form)
                return
            writer.begin_stream(form.stream_type)
            await writer.write(form.opening())
            for i in range(generation.tokens):
                await writer.pace(i)
                await self._unless_it_hangs()
                counters.generation_tokens += 1
                counters.held_tokens += 1
                held += 1
                await writer.write(form.token(i))
                await writer.fail_after(i + 1)
            await writer.end_stream(form.closing())
        finally:
            counters.held_tokens -= held
            counters.running -= 1
            self._slots.release()

    async def _unless_it_hangs(self) -> None:
        if self._hangs:
            await asyncio.Event().wait()  # the client's close cancels


class _Writer:
    """Writes one answer at its pace. It dies, cuts or falls silent as its behaviour requires."""

    def __init__(self, request: Request, answer: Answer, behaviour: Behaviour, taken: Taken) -> None:
        self._answer = answer
        self._taken = taken
        self._behaviour = behaviour
        accepted = behaviour.gzip and "gzip" in request.header("accept-encoding")
        self._gzip = zlib.compressobj(wbits=31) if accepted else None
        self._due = 0.0
        self._headers = [("Content-Encoding", "gzip")] if accepted else []

    async def begin(self) -> None:
        """Waits before the first byte."""
        if self._behaviour.wait:
            await asyncio.sleep(self._behaviour.wait)
        await self.fail_after(0)

    async def pace(self, i: int) -> None:
        """Returns when the i-th token is due; they do not drift."""
        loop, period = asyncio.get_running_loop(), self._behaviour.token_seconds
        if period:
            self._due = loop.time() + period if i == 0 else max(self._due + period, loop.time() - period)
            await asyncio.sleep(self._due - loop.time())
        elif i % _AT_ONCE == 0:
            await asyncio.sleep(0)  # others' turn

    async def produce(self, count: int) -> AsyncIterator[int]:
        """Takes the time of `count` tokens; yields the number of new tokens about once a second."""
        behaviour = self._behaviour
        ends = min(
            (after for after in (behaviour.die, behaviour.cut, behaviour.silent) if after is not None), default=count
        )
        left = min(ends, count)
        at_once = max(int(1 / behaviour.token_seconds), 1) if behaviour.token_seconds else max(left, 1)
        while left > 0:
            made = min(at_once, left)
            await asyncio.sleep(behaviour.token_seconds * made)
            left -= made
            yield made
        await self.fail_after(ends)

    async def fail_after(self, tokens: int) -> None:
        """Fails if the behaviour requires that after this number of tokens."""
        behaviour = self._behaviour
        if behaviour.die == tokens:
            await _die(self._answer)
        if behaviour.cut == tokens:
            await self._answer.flushed()
            self._answer.cut()
            await asyncio.Event().wait()  # the connection's end cancels
        if behaviour.silent == tokens:
            await asyncio.Event().wait()  # the client's close cancels

    def begin_stream(self, content_type: str) -> None:
        self._answer.begin(200, [("Content-Type", content_type), ("Cache-Control", "no-cache"), *self._headers])

    async def write(self, data: bytes) -> None:
        if self._gzip is not None and data:
            data = self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        await self._answer.write(data)

    async def end_stream(self, data: bytes) -> None:
        await self._answer.write(data if self._gzip is None else self._gzip.compress(data) + self._gzip.flush())
        self._taken.finish()
        self._answer.end()

    async def send_complete(self, form: Form) -> None:
        """Sends an answer that is not streamed."""
        body = form.complete()
        if self._gzip is not None:
            body = self._gzip.compress(body) + self._gzip.flush()
        self._taken.finish()
        self._answer.send(200, [("Content-Type", form.complete_type), *self._headers], body)


class _Digested:
    """Counts and digests passing chunks."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.digest = hashlib.sha256()
        self.size = 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            self.size += len(chunk)
            self.digest.update(chunk)
            yield chunk


async def _die(answer: Answer) -> None:
    """Kills this process once the system has taken the answer."""
    await answer.flushed()
    os.kill(os.getpid(), signal.SIGKILL)


def _send(answer: Answer, status: int, content: dict[str, Any]) -> None:
    answer.send(status, [("Content-Type", JSON)], json.dumps(content).encode())


def _refuse(answer: Answer, status: int, message: str, param: str | None = None, *, anthropic: bool = False) -> None:
    default = "invalid_request_error" if status < 500 else "service_unavailable" if status == 503 else "api_error"
    kind = _TYPES.get(status, default)
    if anthropic:
        _send(answer, status, {"type": "error", "error": {"type": kind, "message": message}})
    else:
        _send(answer, status, {"error": {"message": message, "type": kind, "param": param, "code": None}})
