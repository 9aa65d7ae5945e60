"""A small model server for simulated GPUs: OpenAI-compatible, with fixed tokens. `python -m` starts it.

It is a process like any engine: it loads, answers its probe, serves, obeys or ignores SIGTERM, and can exit by itself.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

from aiohttp import web

_WORDS = ("The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", ",", "token", "by", "token", ".")
_DEFAULT_TOKENS = 16
_MAX_TOKENS = 100_000
_BACKLOG = 4096


class BadRequestError(ValueError):
    """The request is invalid; `param` names the field."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True)
class CompletionRequest:
    """A validated request."""

    model: str
    chat: bool
    prompt_tokens: int
    tokens: int
    stream: bool
    usage_in_stream: bool


def parse_request(body: Any, *, chat: bool) -> CompletionRequest:
    """Validates a completion request.

    Raises:
        BadRequestError: a field is missing or invalid.
    """
    if not isinstance(body, dict):
        raise BadRequestError("body", "the body must be a JSON object")
    if not isinstance(body.get("model"), str) or not body["model"]:
        raise BadRequestError("model", "model: must be the model's name")
    tokens_field = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    tokens = body.get(tokens_field)
    tokens = _DEFAULT_TOKENS if tokens is None else tokens
    if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= _MAX_TOKENS:
        raise BadRequestError(tokens_field, f"{tokens_field}: must be a whole number from 1 to {_MAX_TOKENS}")
    stream = body.get("stream") or False
    if not isinstance(stream, bool):
        raise BadRequestError("stream", "stream: must be true or false")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise BadRequestError("stream_options", "stream_options: must be an object")
    prompt = _chat_text(body.get("messages")) if chat else _prompt_text(body.get("prompt"))
    return CompletionRequest(
        body["model"], chat, len(prompt.split()), tokens, stream, bool(options.get("include_usage"))
    )


def _chat_text(messages: Any) -> str:
    if not isinstance(messages, list) or not messages:
        raise BadRequestError("messages", "messages: must be a list with at least one message")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise BadRequestError("messages", "messages: every message must be an object with a role")
        if not isinstance(message.get("content"), str | list | None):
            raise BadRequestError("messages", "messages: content must be a string or a list of parts")
    return " ".join(str(message.get("content") or "") for message in messages)


def _prompt_text(prompt: Any) -> str:
    if isinstance(prompt, list) and prompt and all(isinstance(part, str) for part in prompt):
        return " ".join(prompt)
    if not isinstance(prompt, str):
        raise BadRequestError("prompt", "prompt: must be a string or a list of strings")
    return prompt


class Engine:
    """The server's handlers."""

    def __init__(self, model: str, load_seconds: float, token_seconds: float) -> None:
        self._model = model
        self._token_seconds = token_seconds
        self._loaded_at = time.monotonic() + load_seconds
        self._count = 0
        self._waiting = 0  # their bodies are still being read
        self._running = 0

    def app(self) -> web.Application:
        """All routes."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._completion)
        return app

    def _loading(self) -> web.Response | None:
        if time.monotonic() >= self._loaded_at:
            return None
        return _error(503, "the model is still loading", "service_unavailable", None)

    async def _health(self, _: web.Request) -> web.Response:
        return self._loading() or web.json_response({"status": "ok"})

    async def _models(self, _: web.Request) -> web.Response:
        card = {"id": self._model, "object": "model", "created": 0, "owned_by": "gpuward"}
        return self._loading() or web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, _: web.Request) -> web.Response:
        gauges = {"simulated_requests_running": self._running, "simulated_requests_waiting": self._waiting}
        lines = (f"# TYPE {name} gauge\n{name} {value}\n" for name, value in gauges.items())
        return web.Response(text="".join(lines), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        if (loading := self._loading()) is not None:
            return loading
        try:
            completion = parse_request(json.loads(await self._body(request)), chat=chat)
        except BadRequestError as error:
            return _error(400, str(error), "invalid_request_error", error.param)
        except ValueError:
            return _error(400, "the body is not valid JSON", "invalid_request_error", None)
        self._count += 1
        base = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{os.getpid()}-{self._count}", "created": int(time.time())}
        base |= {"model": completion.model}
        self._running += 1
        try:
            return await (
                self._streamed(request, completion, base) if completion.stream else self._whole(completion, base)
            )
        finally:
            self._running -= 1

    async def _body(self, request: web.Request) -> bytes:
        self._waiting += 1
        try:
            return await request.read()
        finally:
            self._waiting -= 1

    async def _whole(self, completion: CompletionRequest, base: dict[str, Any]) -> web.Response:
        await asyncio.sleep(self._token_seconds * completion.tokens)
        text = "".join(_token(i) for i in range(completion.tokens))
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length", "logprobs": None}
        choice |= {"message": {"role": "assistant", "content": text}} if completion.chat else {"text": text}
        kind = "chat.completion" if completion.chat else "text_completion"
        return web.json_response({**base, "object": kind, "choices": [choice], "usage": _usage(completion)})

    async def _streamed(
        self, request: web.Request, completion: CompletionRequest, base: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        base = {**base, "object": "chat.completion.chunk" if completion.chat else "text_completion"}
        for i in range(completion.tokens):
            if self._token_seconds:
                await asyncio.sleep(self._token_seconds)
            last = i == completion.tokens - 1
            choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None, "logprobs": None}
            if completion.chat:
                choice["delta"] = {"content": _token(i)} | ({"role": "assistant"} if i == 0 else {})
            else:
                choice["text"] = _token(i)
            await _event(response, json.dumps({**base, "choices": [choice]}))
        if completion.usage_in_stream:
            await _event(response, json.dumps({**base, "choices": [], "usage": _usage(completion)}))
        await _event(response, "[DONE]")
        await response.write_eof()
        return response


def _token(i: int) -> str:
    return ("" if i == 0 else " ") + _WORDS[i % len(_WORDS)]


def _usage(completion: CompletionRequest) -> dict[str, int]:
    total = completion.prompt_tokens + completion.tokens
    return {"prompt_tokens": completion.prompt_tokens, "completion_tokens": completion.tokens, "total_tokens": total}


async def _event(response: web.StreamResponse, data: str) -> None:
    await response.write(f"data: {data}\n\n".encode())


def _error(status: int, message: str, kind: str, param: str | None) -> web.Response:
    return web.json_response({"error": {"message": message, "type": kind, "param": param, "code": None}}, status=status)


def parse_args(argv: list[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(prog="simulated_engine", allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True, help="loopback port")
    parser.add_argument("--model", required=True, help="name of the served model")
    parser.add_argument("--load-seconds", type=float, default=0.0, help="duration of loading")
    parser.add_argument("--exit-after", type=float, default=None, help="exit after this many seconds")
    parser.add_argument("--exit-code", type=int, default=0, help="exit code for --exit-after")
    parser.add_argument("--ignore-sigterm", action="store_true", help="ignore SIGTERM")
    parser.add_argument("--token-seconds", type=float, default=0.0, help="seconds per token")
    return parser.parse_args(argv)


async def serve(args: argparse.Namespace) -> int:
    """Serves until SIGTERM, SIGINT or `--exit-after`; returns the exit code."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, (lambda: None) if args.ignore_sigterm else stop.set)
    engine = Engine(args.model, args.load_seconds, args.token_seconds)
    runner = web.AppRunner(engine.app(), access_log=None, shutdown_timeout=0.2, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", args.port, backlog=_BACKLOG).start()
    print(f"serving {args.model} on 127.0.0.1:{args.port}", flush=True)  # noqa: T201 - its log
    try:
        async with asyncio.timeout(args.exit_after):
            await stop.wait()
    except TimeoutError:
        return int(args.exit_code)
    else:
        return 0
    finally:
        await runner.cleanup()


if __name__ == "__main__":
    sys.exit(asyncio.run(serve(parse_args(sys.argv[1:]))))
