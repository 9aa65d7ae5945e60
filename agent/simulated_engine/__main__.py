"""Serves until a signal, or until `--exit-after`."""

import argparse
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, Final

from agent.simulated_engine.answers import ENDPOINTS, Answer, BadRequestError, answer

_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Engine(ThreadingTCPServer):
    """Answers requests for any model name, since the gateway sends the deployment's."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 4096

    def __init__(self, address: tuple[str, int], model: str, adapters: Mapping[str, str], load_seconds: float) -> None:
        super().__init__(address, _Handler)
        self._model = model
        self._adapters = adapters  # paths by name
        self.loaded_at = time.monotonic() + load_seconds
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._prompt_tokens = 0
        self._tokens = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs an error, unless the client has left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def answer(self, path: str, body: bytes) -> Answer:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            raise BadRequestError("body", "the body is not valid JSON") from None
        if not isinstance(content, dict):
            raise BadRequestError("body", "the body must be a JSON object")
        made = answer(path, content, f"{os.getpid()}-{next(self._ids)}", int(time.time()))
        with self._lock:
            self._prompt_tokens += made.usage["prompt_tokens"]
            self._tokens += made.usage["total_tokens"] - made.usage["prompt_tokens"]
        return made

    def models(self) -> dict[str, Any]:
        base = {"object": "model", "created": 0, "owned_by": "gpuward"}
        cards: list[dict[str, Any]] = [{"id": self._model, **base, "root": self._model, "parent": None}]
        cards += ({"id": name, **base, "root": path, "parent": self._model} for name, path in self._adapters.items())
        return {"object": "list", "data": cards}

    def metrics(self) -> str:
        """Prometheus' text. No request waits, since all are answered at once."""
        label = json.dumps(self._model, ensure_ascii=False)
        figures = (
            ("simulated_requests_running", "gauge", 0),
            ("simulated_requests_waiting", "gauge", 0),
            ("vllm:kv_cache_usage_perc", "gauge", 0),
            ("vllm:prompt_tokens_total", "counter", self._prompt_tokens),
            ("vllm:generation_tokens_total", "counter", self._tokens),
        )
        return "".join(f"# TYPE {name} {kind}\n{name}{{model_name={label}}} {n}\n" for name, kind, n in figures)


class _Handler(BaseHTTPRequestHandler):
    server: Engine
    protocol_version = "HTTP/1.1"
    timeout = 75.0  # seconds, of a connection at rest
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Logs no request."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ENDPOINTS:
            self._send(405, {"detail": "Method Not Allowed"}, Allow="POST")
        elif path == "/metrics":
            self._send(200, self.server.metrics().encode(), _METRICS_TYPE)
        elif path in ("/health", "/v1/models") and time.monotonic() < self.server.loaded_at:
            self._refuse(503, "service_unavailable", "the model is still loading")
        elif path == "/health":
            self._send(200, {"status": "ok"})
        elif path == "/v1/models":
            self._send(200, self.server.models())
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self._read_body()
        if path not in ENDPOINTS:
            self._send(404, {"detail": "Not Found"})
        elif time.monotonic() < self.server.loaded_at:
            self._refuse(503, "service_unavailable", "the model is still loading")
        else:
            try:
                answer = self.server.answer(path, body)
            except BadRequestError as error:
                self._refuse(400, "invalid_request_error", str(error), error.param)
            else:
                self._stream(answer) if answer.events else self._send(200, answer.content)

    def _read_body(self) -> bytes:
        """Not bounded, since the gateway bounds it."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = bytearray()
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return bytes(body)

    def _head(self, status: int, **headers: str) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _send(self, status: int, content: dict[str, Any] | bytes, kind: str = "application/json", **more: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._head(status, Content_Type=kind, Content_Length=str(len(body)), **more)
        self.wfile.write(body)

    def _refuse(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        self._send(status, {"error": {"message": message, "type": kind, "param": param, "code": None}})

    def _stream(self, answer: Answer) -> None:
        self._head(200, Content_Type="text/event-stream", Transfer_Encoding="chunked")
        for data in (*map(json.dumps, answer.events), "[DONE]"):
            event = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.wfile.write(b"0\r\n\r\n")


def parse_args(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Also returns unknown arguments, such as of other versions. Exits with code 2 if invalid."""
    parser = argparse.ArgumentParser(prog="simulated_engine", allow_abbrev=False)
    add = parser.add_argument
    add("--port", type=int, required=True, help="port to listen on")
    add("--host", default="127.0.0.1", help="address to listen on")
    add("--model", required=True, help="name of the served model")
    add("--load-seconds", type=float, default=0.0, help="duration of loading")
    add("--exit-after", type=float, default=None, help="exit after this many seconds")
    add("--exit-code", type=int, default=0, help="exit code for --exit-after")
    add("--ignore-sigterm", action="store_true", help="ignore SIGTERM")
    add("--lora-modules", nargs="+", default=[], metavar="NAME=PATH", help="adapters by name")
    return parser.parse_known_args(argv)


def run(args: argparse.Namespace, ignored: Sequence[str]) -> int:
    """Serves until SIGTERM or SIGINT, which end the process, or `--exit-after`; returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if args.ignore_sigterm else lambda *_: sys.exit(0))
    if ignored:
        print(f"warning: these arguments have no effect: {' '.join(ignored)}", flush=True)  # noqa: T201 - its log
    adapters = dict(module.split("=", 1) for module in args.lora_modules)
    engine = Engine((args.host, args.port), args.model, adapters, args.load_seconds)
    threading.Thread(target=engine.serve_forever, daemon=True).start()
    print(f"serving {args.model} on {args.host}:{args.port}", flush=True)  # noqa: T201 - its log
    threading.Event().wait(args.exit_after)  # a signal ends the process here
    return int(args.exit_code)


if __name__ == "__main__":
    sys.exit(run(*parse_args(sys.argv[1:])))
