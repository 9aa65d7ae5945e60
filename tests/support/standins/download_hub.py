"""A model hub from which models are fetched, over real HTTP: tokens, ranges, slow and broken transfers."""

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

COMMIT: Final = "c" * 40
_PIECE: Final = 16_384


@dataclass
class DownloadHub:
    """Its content, what goes wrong, and what it was asked.

    Attributes:
        repos: the files of each repository, by name. Those that end in `.safetensors` are large files.
        commits: of repositories whose commit is another one.
        tokens: by gated repository, the tokens that may read it.
        pause_s: after each piece of a large file.
        breaks_after: bytes of a large file after which the connection is cut, once for each file.
        damaged: files that are sent with a wrong byte.
        down: answers 503 to everything.
        limited: answers 429 to requests for files.
        store: large files are in a store of another name, which refuses tokens and, if `expired`, everything.
        etag: of every file, as `HEAD` tells it.
        told_commit: likewise the commit.
        sent: bytes of large files sent.
        asked: `(path, Range, Authorization)` of every request.
    """

    repos: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=dict)
    tokens: dict[str, set[str]] = field(default_factory=dict)
    pause_s: float = 0.0
    breaks_after: int | None = None
    damaged: set[str] = field(default_factory=set)
    down: bool = False
    limited: bool = False
    store: bool = False
    expired: bool = False
    etag: str = "0" * 40
    told_commit: str = COMMIT
    sent: int = 0
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    url: str = ""
    broken: set[str] = field(default_factory=set)

    def files_asked(self, name: str) -> list[str]:
        """The `Range` of each request for a file's content."""
        return [one for path, one, _ in self.asked if path.endswith("/" + name)]


@contextmanager
def running_download_hub(hub: DownloadHub) -> Iterator[DownloadHub]:
    """Serves on loopback while the context is open."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def is_large(name: str) -> bool:
    """Whether a file is kept as a large one, named by its SHA-256."""
    return name.endswith((".safetensors", ".bin"))


class _Handler(BaseHTTPRequestHandler):
    hub: DownloadHub

    def do_GET(self) -> None:
        hub = self.hub
        path = self.path.partition("?")[0]
        hub.asked.append((path, self.headers.get("Range", ""), self.headers.get("Authorization", "")))
        parts = path.strip("/").split("/")
        if hub.down:
            self._answer(503, b"")
        elif parts[0] == "store":
            refused = hub.expired or "X-Signature=secret" not in self.path or "Authorization" in self.headers
            content = hub.repos["/".join(parts[1:3])][parts[3]]
            self._answer(403, b"") if refused else self._send_content(parts[3], content)
        elif parts[:2] == ["api", "models"]:
            self._tell_of("/".join(parts[2:4]), parts[4:])
        elif hub.limited:
            self._answer(429, b"", {"Retry-After": "0"})
        else:
            self._send("/".join(parts[:2]), parts[3], "/".join(parts[4:]))

    def do_HEAD(self) -> None:
        hub = self.hub
        path = self.path.partition("?")[0]
        hub.asked.append((path, "HEAD", self.headers.get("Authorization", "")))
        parts = path.strip("/").split("/")
        content = hub.repos.get("/".join(parts[:2]), {}).get("/".join(parts[4:]), b"")
        told = {"Content-Length": str(len(content)), "ETag": f'"{hub.etag}"', "X-Repo-Commit": hub.told_commit}
        self._answer(200, b"", told)

    def _may_read(self, repo: str) -> bool:
        tokens = self.hub.tokens.get(repo)
        return tokens is None or self.headers.get("Authorization", "").removeprefix("Bearer ") in tokens

    def _tell_of(self, repo: str, rest: list[str]) -> None:
        hub = self.hub
        commit = hub.commits.get(repo, COMMIT)
        if repo not in hub.repos:
            self._answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        elif rest == ["auth-check"]:
            self._answer(200, b"{}") if self._may_read(repo) else self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif rest[:1] == ["revision"] and rest[1] not in ("main", commit):
            self._answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
        else:
            siblings = [_sibling(name, content) for name, content in hub.repos[repo].items()]
            gated = "manual" if repo in hub.tokens else False
            told = {"id": repo, "sha": commit, "private": False, "gated": gated, "siblings": siblings}
            self._answer(200, json.dumps(told).encode())

    def _send(self, repo: str, revision: str, name: str) -> None:
        hub = self.hub
        content = hub.repos.get(repo, {}).get(name)
        if not self._may_read(repo):
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif content is None or revision != hub.commits.get(repo, COMMIT):
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        elif hub.store and is_large(name):
            elsewhere = hub.url.replace("127.0.0.1", "localhost")
            self._answer(302, b"", {"Location": f"{elsewhere}/store/{repo}/{name}?X-Signature=secret"})
        else:
            self._send_content(name, content)

    def _send_content(self, name: str, content: bytes) -> None:
        hub, asked = self.hub, self.headers.get("Range", "")
        size = len(content)
        begin, _, end = asked.removeprefix("bytes=").partition("-")
        first, last = int(begin or 0), int(end or size - 1)
        if name in hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        content = content[: last + 1]
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(content) - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{size}")
        self.end_headers()
        for start in range(first, len(content), _PIECE):
            if hub.breaks_after is not None and start >= hub.breaks_after and name not in hub.broken and is_large(name):
                hub.broken.add(name)
                self.connection.close()
                return
            piece = content[start : start + _PIECE]
            try:
                self.wfile.write(piece)
            except OSError:  # the client has left
                return
            if is_large(name):
                hub.sent += len(piece)
                time.sleep(hub.pause_s)

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def _sibling(name: str, content: bytes) -> dict[str, Any]:
    told: dict[str, Any] = {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
    if is_large(name):
        told["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return told


def git_hash(content: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
