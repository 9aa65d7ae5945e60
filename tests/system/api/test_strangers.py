"""What strangers send is refused with 400 or 401, and fills no log."""

import asyncio
import json
import re

import pytest

from support.processes.cluster import Cluster

HEAD = "{line}\r\nHost: x\r\nConnection: close\r\n{more}\r\n"
KEY = "Authorization: Bearer {key}\r\n"
CHUNKED = KEY + "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n"
UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\nAuthorization: Bearer \xff\r\nSec-WebSocket-Version: 12\r\n"
NO_CHARSET = KEY + "Content-Type: application/json; charset=\xff\r\nContent-Length: 0\r\n"
CASES = {
    "a charset beyond ASCII": ("POST /v1/chat/completions HTTP/1.1", NO_CHARSET, "400"),
    "a key beyond ASCII": ("GET /api/v1/workers HTTP/1.1", "Authorization: Bearer gpw_\xff\xfe\r\n", "401"),
    "a key of NULs": ("GET /api/v1/workers HTTP/1.1", "Authorization: Bearer gpw_\x00\r\n", "400"),
    "a header without a colon": ("GET /healthz HTTP/1.1", "no colon\r\n", "400"),
    "two lengths": ("POST /api/v1/join HTTP/1.1", "Content-Length: 1\r\nContent-Length: 2\r\n", "400"),
    "a long line": ("GET /" + "x" * 100_000 + " HTTP/1.1", "", "400|431"),
    "no HTTP": ("\x16\x03\x01\x02", "", "400"),
    "NUL in a path": ("GET /api/v1/deployments/a%00b HTTP/1.1", KEY, "400"),
    "NUL in a query": ("GET /api/v1/events?object=%00 HTTP/1.1", KEY, "400"),
    "half a character": ("GET /api/v1/deployments/%ed%a0%80 HTTP/1.1", KEY, "40[04]"),
    "NUL without a key": ("GET /api/v1/workers/%00 HTTP/1.1", "", "40[01]"),
    "bad chunks of a stranger": ("POST /api/v1/join HTTP/1.1", CHUNKED, "400"),
    "bad chunks with a key": ("PUT /api/v1/deployments/x HTTP/1.1", CHUNKED, "400"),
    "bad chunks to a model": ("POST /v1/chat/completions HTTP/1.1", CHUNKED, "400"),
    "no handshake": ("GET /api/v1/agents/connect HTTP/1.1", UPGRADE, "40[014]"),
    "a full URL": ("GET http://[::bad/ HTTP/1.1", KEY, "40[04]"),
}


async def ask(port: int, text: str) -> str:
    """The status of the answer to these bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text.encode("latin-1"))
    async with asyncio.timeout(20):
        line = await reader.readline()
    writer.close()
    return line.decode("latin-1").partition(" ")[2][:3]


@pytest.mark.cases
async def test_malformed_requests_are_refused_and_logged_once(cluster: Cluster) -> None:
    await cluster.start_controller()
    await cluster.start_agent("gpu-1")
    key = cluster.session.headers["Authorization"].partition(" ")[2]
    found = {}
    for _ in range(5):
        for name, (line, more, wanted) in CASES.items():
            status = await ask(cluster.port, HEAD.format(line=line, more=more.format(key=key)))
            if not re.fullmatch(wanted, status):
                found[name] = status
    status, body = await cluster.call("PUT", "/deployments/x", {"engine": "simulated", "model": "a\x00b"})
    assert (status, found) == (400, {}), body
    status, body = await cluster.call("POST", "/keys", {"role": "viewer", "name": "a\x00b"})
    assert status == 400, body
    log = (cluster.folder / "controller.log").read_text()
    assert "Traceback" not in log
    assert 1 <= log.count("malformed request") <= 2, "of the gateway, and of the controller"
    assert len(log.splitlines()) < 60

    agent = cluster.proxy_port("gpu-1")
    for name, (line, more, _) in CASES.items():
        status = await ask(agent, HEAD.format(line=line, more=more.format(key="x")))
        if status not in ("400", "401", "404", "431"):
            found[name] = status
    assert found == {}
    log = (cluster.folder / "gpu-1.log").read_text()
    assert "Traceback" not in log
    assert log.count("malformed request") == 1


async def join(cluster: Cluster, token: str, address: str) -> int:
    """The status of a join through a proxy that names the client's address."""
    headers = {"X-Forwarded-For": address}
    body = json.dumps({"token": token, "name": "gpu-1"})
    async with cluster.session.post("/api/v1/join", data=body, headers=headers) as response:
        return response.status


@pytest.mark.cases
async def test_bad_joins_behind_a_trusted_proxy_block_their_token_alone(cluster: Cluster) -> None:
    await cluster.start_controller(GPUWARD_TRUSTED_PROXY="127.0.0.0/8")
    token = (await cluster.post("/tokens", {}))["token"]
    statuses = [await join(cluster, "bad", "192.0.2.1") for _ in range(25)]
    assert (statuses[0], statuses[-1]) == (401, 429)
    assert await join(cluster, token, "192.0.2.1") == 200
    assert "peer=192.0.2.1" in (cluster.folder / "controller.log").read_text()
