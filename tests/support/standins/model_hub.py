"""A model hub: as much of its HTTP as reading metadata needs, with its refusals."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "a" * 40


@dataclass
class Hub:
    """Its content, and the requests that it got.

    Attributes:
        repos: the files of each repository, by name.
        gated: repositories that list their files but refuse them.
        elsewhere: repositories whose files are in a store behind signed URLs, which refuses them.
        ranges: whether it answers ranges; else it sends whole files.
        asked: `(method, path, Range)` of every request.
        sent: bytes of file contents sent.
    """

    repos: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)
    ranges: bool = True
    url: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    sent: int = 0


@contextmanager
def running_hub(hub: Hub) -> Iterator[Hub]:
    """Serves on loopback while the context is open."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        self.hub.asked.append(("GET", self.path, self.headers.get("Range", "")))
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._tell_of("/".join(parts[2:4]))
        elif parts[0] == "store":
            self._answer(403, b"")
        else:
            self._send_file("/".join(parts[:2]), revision=parts[3], name="/".join(parts[4:]))

    def _tell_of(self, repo: str) -> None:
        if repo not in self.hub.repos:
            self._refuse(401, "RepoNotFound")
        elif "/revision/" in self.path and "/revision/none" in self.path:
            self._refuse(404, "RevisionNotFound")
        else:
            siblings = [{"rfilename": n, "size": len(c)} for n, c in self.hub.repos[repo].items()]
            self._answer(200, json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings}).encode())

    def _send_file(self, repo: str, revision: str, name: str) -> None:
        content = self.hub.repos.get(repo, {}).get(name)
        if repo in self.hub.gated:
            self._refuse(403, "GatedRepo")
        elif repo in self.hub.elsewhere:
            self._answer(302, b"", {"Location": f"{self.hub.url}/store/{name}?X-Signature=secret&X-Expires=1"})
        elif content is None or revision != COMMIT:
            self._refuse(404, "EntryNotFound")
        else:
            self._send_range(content)

    def _send_range(self, content: bytes) -> None:
        asked = self.headers.get("Range", "")
        if not self.hub.ranges or not asked.startswith("bytes="):
            self._answer(200, content)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1]
        self.hub.sent += len(part)
        self._answer(206, part, {"Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"})

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b"", {"X-Error-Code": code})

    def _answer(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except ConnectionError:  # the client has closed
            return

    def log_message(self, *_: Any) -> None:
        """Says nothing."""
