"""A model server that locks each GPU of its claim and records each request: `locking_engine.py HISTORY MODEL PORT`.

It imports nothing of the product, and so do those that read its records. Each process writes a file of its own into the
folder HISTORY/records, a line of JSON for each fact, and locks HISTORY/locks/GPU for each GPU that
CUDA_VISIBLE_DEVICES names. `--strict` refuses `stream_options`, as servers do that reject unknown fields.
"""

import fcntl
import http.server
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

BEAT_S = 0.1


class Records:
    """This process's file. A line is one write, so that an end of the process leaves complete lines."""

    def __init__(self, folder: Path) -> None:
        self._name = f"{os.getpid()}-{time.monotonic_ns()}"  # pids come again
        self._file = os.open(folder / f"engine-{self._name}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, **more: object) -> None:
        """Adds a fact with this process and the monotonic time, which all processes of a host share."""
        line = {"t": time.monotonic(), "what": what, "engine": self._name, **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def lock_gpus(folder: Path, records: Records, model: str) -> list[int]:
    """Locks each GPU of the claim; ends the process where another one has it.

    Returns:
        the open files, which are locked as long as the process has them.
    """
    gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    files = []
    for gpu in gpus:
        file = os.open(folder / gpu, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            records.note("conflict", gpu=gpu, model=model)
            sys.exit(3)
        files.append(file)
    start = f"{os.environ['GPUWARD_INSTANCE']}/{os.environ['GPUWARD_EPOCH']}/{os.environ['GPUWARD_RANK']}"
    records.note("held", gpus=gpus, model=model, start=start)
    return files


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers chats. The prompt is JSON: `id`, and optionally `tokens`, `pause_s` between them, and `busy`."""

    protocol_version = "HTTP/1.1"
    records: Records
    model: str
    strict: bool

    def do_GET(self) -> None:
        """The probe's answer; no metrics."""
        self._reply(200 if self.path == "/" else 404, {})

    def do_POST(self) -> None:
        """One answer, whole or as a stream."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        asked: dict[str, Any] = json.loads(body["messages"][-1]["content"])
        name, usage = asked["id"], "stream_options" in body
        self.records.note("taken", id=name, model=self.model, usage=usage)
        if asked.get("busy"):
            self._refuse(name, 503, "busy")
        elif usage and self.strict:
            self._refuse(name, 400, "unknown field stream_options")
        else:
            self._answer(name, asked, stream=body.get("stream", False))

    def _refuse(self, name: str, status: int, message: str) -> None:
        self.records.note("refused", id=name, status=status)
        self._reply(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _answer(self, name: str, asked: dict[str, Any], *, stream: bool) -> None:
        tokens, pause_s = asked.get("tokens", 4), asked.get("pause_s", 0.01)
        text = f"{self.model} {name}"
        if not stream:
            time.sleep(tokens * pause_s)
            self.records.note("finished", id=name)
            self._reply(200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for n in range(tokens):
            self._event(json.dumps({"choices": [{"index": 0, "delta": {"content": "" if n else text}}]}))
            time.sleep(pause_s)
        self.records.note("finished", id=name)  # before the last bytes: a client that has them finds it recorded
        self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def _reply(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Requests are recorded elsewhere."""


class Server(http.server.ThreadingHTTPServer):
    """A client may leave at any time."""

    def handle_error(self, *_: object) -> None:
        """Nothing is logged."""


def main(history: str, model: str, port: str, *flags: str) -> None:
    """Serves until a signal ends the process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    records = Records(Path(history) / "records")
    locked = lock_gpus(Path(history) / "locks", records, model)
    Handler.records, Handler.model, Handler.strict = records, model, "--strict" in flags
    server = Server(("127.0.0.1", int(port)), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while locked:
        records.note("beat")
        time.sleep(BEAT_S)


if __name__ == "__main__":
    main(*sys.argv[1:])
