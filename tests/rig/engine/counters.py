"""Counters of the engine, for its metrics and for tests."""

import hashlib
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

_KEPT_BODY: Final = 1024 * 1024
JOURNAL: Final = "SIMULATED_ENGINE_JOURNAL"


class Journal:
    """A file with a line for each request that was taken, and for each that ended: `WORD ID PID MONOTONIC_S`.

    Engines that die leave it behind. Several engines may share one. The environment names it.
    """

    def __init__(self) -> None:
        path = os.environ.get(JOURNAL)
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, word: str, request_id: str) -> None:
        if self._file is not None:
            os.write(self._file, f"{word} {request_id or '-'} {os.getpid()} {time.monotonic():.6f}\n".encode())

    def take(self, request_id: str) -> "Taken":
        self.note("taken", request_id)
        return Taken(self, request_id)


class Taken:
    """A request that was taken. Its first end counts."""

    def __init__(self, journal: Journal, request_id: str) -> None:
        self._journal = journal
        self._id = request_id
        self._ended = False

    def finish(self) -> None:
        """Notes its answer. Called before the last bytes are sent, so that a client that has them finds the note."""
        self._end("finished")

    def leave(self) -> None:
        """Notes that its client left before the answer's end, unless it is answered."""
        self._end("cancelled")

    def _end(self, word: str) -> None:
        if not self._ended:
            self._ended = True
            self._journal.note(word, self._id)


@dataclass(slots=True)
class LastRequest:
    """The last request of which the body was complete."""

    path: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body_bytes: int = 0
    body_sha256: str = ""
    body: bytes | None = None  # None: too long, or a form


@dataclass
class Counters:
    """Requests to the model's endpoints.

    Each taken request ends once: `finished` with an answer of any status, or `cancelled` by its client. Open requests
    are `reading` (their bodies), `queued` or `running`.
    """

    taken: int = 0
    finished: int = 0
    cancelled: int = 0
    refused: int = 0  # of the finished
    reading: int = 0
    queued: int = 0
    running: int = 0
    most_running: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    held_tokens: int = 0  # in the KV cache
    by_path: Counter[str] = field(default_factory=Counter)
    last: LastRequest = field(default_factory=LastRequest)
    journal: Journal = field(default_factory=Journal)

    def keep(self, path: str, headers: list[tuple[str, str]], size: int, digest: str, body: bytes | None) -> None:
        kept = body if body is not None and len(body) <= _KEPT_BODY else None
        self.last = LastRequest(path, headers, size, digest, kept)

    def as_json(self) -> dict[str, Any]:
        """All counts and the last request without its body."""
        names = ("taken", "finished", "cancelled", "refused", "reading", "queued", "running", "most_running")
        last = self.last
        return {name: getattr(self, name) for name in (*names, "prompt_tokens", "generation_tokens")} | {
            "pid": os.getpid(),
            "by_path": dict(self.by_path),
            "last": {
                "path": last.path,
                "headers": last.headers,
                "body_bytes": last.body_bytes,
                "body_sha256": last.body_sha256,
            },
        }

    def metrics(self, model: str, kv_tokens: int) -> str:
        """Metrics in Prometheus' text format, by vLLM's names; the first two also by own names."""
        waiting = self.reading + self.queued
        label = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        kv_use = min(1.0, self.held_tokens / kv_tokens) if kv_tokens else 0.0
        figures = (
            ("simulated_requests_running", "gauge", "", self.running),
            ("simulated_requests_waiting", "gauge", "", waiting),
            ("vllm:num_requests_running", "gauge", label, self.running),
            ("vllm:num_requests_waiting", "gauge", label, waiting),
            ("vllm:kv_cache_usage_perc", "gauge", label, kv_use),
            ("vllm:prompt_tokens_total", "counter", label, self.prompt_tokens),
            ("vllm:generation_tokens_total", "counter", label, self.generation_tokens),
        )
        lines = []
        for name, kind, of, value in figures:
            labels = f'{{engine="0",model_name="{of}"}}' if of else ""
            lines.append(f"# TYPE {name} {kind}\n{name}{labels} {value}\n")
        return "".join(lines)


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
