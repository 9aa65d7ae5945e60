"""A stand-in for `transformers serve`: the same command line, a health check, fixed answers."""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

_WORDS: Final = ("It ", "answers ", "without ", "a ", "model. ")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"status": "ok"})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if request.get("stream"):
            self._stream(request)
        else:
            message = {"role": "assistant", "content": "".join(_WORDS)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": len(_WORDS), "total_tokens": 1 + len(_WORDS)}
            self._answer({"id": "1", "object": "chat.completion", "model": request.get("model"), "created": 0,
                          "choices": [choice], "usage": usage})  # fmt: skip

    def _stream(self, request: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for word in _WORDS:
            choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            chunk = {"id": "1", "object": "chat.completion.chunk", "model": request.get("model"), "created": 0,
                     "choices": [choice]}  # fmt: skip
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _answer(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Logs nothing."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    options, _ = parser.parse_known_args()
    _ballast = b"x" * (64 * 2**20)  # the false GPU shows the host memory of the process
    server = ThreadingHTTPServer((options.host, options.port), _Handler)
    threading.Thread(target=server.serve_forever, name="server").start()


if __name__ == "__main__":
    main()
