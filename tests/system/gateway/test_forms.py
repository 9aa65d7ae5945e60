"""Forms on real processes: streamed on once their model is known, held in bounds, refused before they are read."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes.cluster import Cluster
from support.processes.served_models import counters, engine_urls, listed, make_key, serve

TRANSCRIBE = "/v1/audio/transcriptions"
SOUND = bytes(range(256)) * 120_000  # 30 MB
BOUNDARY = "----gpuward-boundary"
TYPE = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
STEP = 65_536


def field(name: str, value: str) -> bytes:
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


def file(content: bytes) -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    return head.encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


async def in_pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), STEP):
        yield body[at : at + STEP]


async def send(cluster: Cluster, body: bytes, path: str = TRANSCRIBE, *, chunked: bool = False) -> tuple[int, Any]:
    sized = {} if chunked else {"Content-Length": str(len(body))}
    async with cluster.session.post(path, data=in_pieces(body), headers=TYPE | sized) as answer:
        return answer.status, await answer.json()


def peak_mib(process: psutil.Process) -> float:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@pytest.mark.cases
async def test_g5_g10_forms_pass_byte_by_byte_and_refused_ones_are_not_read(cluster: Cluster) -> None:
    serving = {"aliases": ["whisper-1"], "queue": {"length": 4, "wait": "20s"}}
    await serve(cluster, speech={"args": {"served_model_name": "own-name"}, "serving": serving})
    await listed(cluster, "speech")
    before = peak_mib(cluster.gateway())
    for asked, chunked, path in (
        ("speech", False, TRANSCRIBE),
        ("whisper-1", True, TRANSCRIBE),
        ("speech", True, "/v1/audio/translations"),
    ):
        body = b"".join((field("language", "de"), field("model", asked), file(SOUND), field("prompt", "p"), END))
        status, content = await send(cluster, body, path, chunked=chunked)
        assert status == 200, content
        assert content["files"] == [{"name": "file", "bytes": len(SOUND), "sha256": hashlib.sha256(SOUND).hexdigest()}]
        seen = (await counters(cluster, "speech"))[0]["last"]
        expected = body.replace(asked.encode(), b"own-name", 1)
        assert (seen["body_bytes"], seen["body_sha256"]) == (len(expected), hashlib.sha256(expected).hexdigest())
    assert peak_mib(cluster.gateway()) - before < 8, "at most 1 MiB of each was held, and not 30"
    short = b"".join((file(SOUND[:500_000]), field("model", "speech"), END))
    assert (await send(cluster, short))[0] == 200, "the model may come after a file below 1 MiB"
    edit = b"".join((field("prompt", "p"), file(b"x"), field("model", "speech"), END)).replace(b'"file"', b'"image"')
    assert (await send(cluster, edit, "/v1/images/edits"))[0] == 200
    await what_is_refused(cluster)
    await a_body_is_asked_for_once_its_key_may_send_it(cluster)


async def what_is_refused(cluster: Cluster) -> None:
    taken = (await counters(cluster, "speech"))[0]["finished"]
    late = b"".join((file(SOUND), field("model", "speech"), END))
    twice = b"".join((field("model", "speech"), file(b"x" * 3_000_000), field("model", "other"), END))
    for body, status, code, param in (
        (late, 400, "model_too_late", "model"),
        (twice, 400, "invalid", "model"),
        (file(b"x") + END, 400, "invalid", "model"),
        (field("model", "unknown") + file(SOUND) + END, 404, "model_not_found", "model"),
        (field("model", "speech") + file(SOUND * 3) + END, 413, "too_large", None),
    ):
        for chunked in (False, True):
            found, content = await send(cluster, body, chunked=chunked)
            error = content["error"]
            assert (found, error["code"], error["param"]) == (status, code, param)
    assert (await counters(cluster, "speech"))[0]["finished"] == taken, "no engine answered one of them"
    form = field("model", "speech") + END
    async with cluster.session.post("/v1/embeddings", data=form, headers=TYPE) as answer:
        assert answer.status == 400


async def a_body_is_asked_for_once_its_key_may_send_it(cluster: Cluster) -> None:
    """G10: 20 MB with `Expect: 100-continue`, to a path with JSON and to one with a form."""
    good, limited = await make_key(cluster), await make_key(cluster, rpm=1)

    async def expect(path: str, key: str, kind: str, body: bytes) -> tuple[bytes, bytes]:
        """The first line, sent before the body, and that of the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: {kind}\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        async with asyncio.timeout(30):
            first = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
            if b"100" in first:
                writer.write(body)
                await writer.drain()
                second = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0]
            else:
                second = b""
        writer.close()
        return first, second

    text = json.dumps({"model": "speech", "messages": [{"role": "user", "content": "x" * 20_000_000}]}).encode()
    form = b"".join((field("model", "speech"), file(SOUND[:20_000_000]), END))
    for path, kind, body in (
        ("/v1/chat/completions", "application/json", text),
        (TRANSCRIBE, TYPE["Content-Type"], form),
    ):
        assert await expect(path, good, kind, body) == (b"HTTP/1.1 100 Continue", b"HTTP/1.1 200 OK")
        assert await expect(path, "gpw_wrong", kind, body) == (b"HTTP/1.1 401 Unauthorized", b"")
    assert (await expect(TRANSCRIBE, limited, TYPE["Content-Type"], form))[0] == b"HTTP/1.1 100 Continue"
    for path in ("/v1/chat/completions", TRANSCRIBE):
        assert await expect(path, limited, TYPE["Content-Type"], form) == (b"HTTP/1.1 429 Too Many Requests", b"")


@pytest.mark.cases
async def test_a_form_waits_and_moves_on_as_every_request_does_until_its_body_passes(cluster: Cluster) -> None:
    sleepy = {"replicas": {"min": 0, "max": 1}, "args": {"load_seconds": 1}}
    await serve(cluster, speech=sleepy, busy={"args": {"refuse": 503}, "replicas": 2})
    body = b"".join((field("model", "speech"), file(SOUND), END))
    status, content = await send(cluster, body)
    assert (status, content["files"][0]["bytes"]) == (200, len(SOUND)), "it was held, and woke its model"
    await listed(cluster, "busy")
    refused = body.replace(b"speech", b"busy", 1)
    status, content = await send(cluster, refused)
    assert status == 503
    assert sum(one["taken"] for one in await counters(cluster, "busy")) == 1, "no second one can have it"
    assert len(await engine_urls(cluster, "busy")) == 2
    dying = b"".join((field("model", "speech"), field("prompt", "[simulate die=0]"), file(SOUND[:100_000]), END))
    status, content = await send(cluster, dying)
    assert (status, content["error"]["code"]) == (502, "engine_died")
