"""The hub read by range requests: a real server on loopback stands in for it, the real library asks it."""

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gpuward.controller.runtime.child import ChildError, run_child

HEADER = json.dumps({"a": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]}}).encode()
FILES = {
    "/org/good/resolve/main/model.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + b"\0" * 64,
    "/org/good/resolve/main/config.json": b'{"num_attention_heads": 8, "vocab_size": 32}',
    "/org/broken/resolve/main/model.safetensors": struct.pack("<Q", 4) + b"{{{{" + b"\0" * 64,
}
KNOWN_REPOS = ("/org/good/", "/org/broken/", "/org/bin/")


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as metadata needs: HEAD and ranged GET of files, and its way of saying no."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        content = FILES.get(self.path)
        if content is None:
            known = self.path.startswith(KNOWN_REPOS)
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        total, asked = len(content), self.headers.get("Range", "")
        if asked.startswith("bytes="):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            content = content[int(first) : int(last) + 1 if last else None]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(content) - 1}/{total}")
        else:
            self.send_response(200)
        self.send_header("ETag", '"0123456789abcdef0123456789abcdef01234567"')
        self.send_header("X-Repo-Commit", "a" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


async def read(endpoint: str, repo: str) -> Any:
    target = "gpuward.controller.models.analysis:safetensors_need"
    payload = {"repo": repo, "revision": "main", "endpoint": endpoint}
    return await run_child(target, payload, deadline_s=60, memory_bytes=2 * 2**30)


async def test_headers_and_config_are_read(hub: str) -> None:
    assert await read(hub, "org/good") == {
        "tensor_bytes": 64, "elements": {"BF16": 32}, "files": 1, "heads": 8, "kv_heads": 8, "vocab": 32,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("repo", "words"),
    [
        ("org/nobody", "hf:org/nobody@main is not there"),
        ("org/bin", "hf:org/bin@main is not there, not public, or has no safetensors"),
        ("org/broken", "hf:org/broken@main has broken safetensors"),
    ],
)
async def test_what_the_hub_does_not_have_is_terminal(hub: str, repo: str, words: str) -> None:
    with pytest.raises(ChildError, match=words) as raised:
        await read(hub, repo)
    assert not raised.value.retryable


async def test_a_hub_out_of_reach_is_asked_again() -> None:
    with pytest.raises(ChildError, match="cannot be read") as raised:
        await read("http://127.0.0.1:9", "org/good")
    assert raised.value.retryable
