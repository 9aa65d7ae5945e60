"""A controller with its own authority: an agent joins by hash, and all on the way to a model speaks TLS."""

import asyncio
import re
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from http1.tls.authority import Authority
from http1.tls.pinned import trusting
from support.processes.cluster import Cluster

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


class TlsCluster(Cluster):
    """Its controller has an authority in its data folder."""

    @property
    def authority(self) -> Authority:
        return Authority(self.data_dir)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def _connector(self) -> aiohttp.BaseConnector:
        return aiohttp.TCPConnector(ssl=trusting(self.authority.certificate if self.authority.exists else None))

    async def speak_tls(self) -> None:
        """From now on this asks the API over TLS."""
        await self.session.close()
        self._session = self._open_session({**self.client_env(), "GPUWARD_URL": self.url})

    async def cli(self, *argv: str, **env: str) -> str:
        """Runs a verb to its end; returns what it printed."""
        name = f"cli-{len(self.processes)}"
        self.start(name, *argv, **env)
        assert await asyncio.to_thread(self.processes[name].wait, 60) == 0, self.log(name)
        return self.log(name)

    async def end(self, name: str) -> None:
        """Ends a process cleanly."""
        process = self.processes[name]
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0, self.log(name)

    def client_env(self) -> dict[str, str]:
        lines = (self.data_dir / "client.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture
async def cluster(data_dir: Path) -> AsyncIterator[TlsCluster]:
    made = TlsCluster(data_dir)
    yield made
    await made.aclose()


async def shown_by(port: int, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that a port shows."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="127.0.0.1")
    found = writer.get_extra_info("ssl_object").getpeercert()
    writer.transport.abort()
    return int(found["serialNumber"], 16)


async def test_all_ways_speak_tls(cluster: TlsCluster) -> None:
    await cluster.cli("ca", "init", "--data-dir", str(cluster.data_dir))
    assert cluster.authority.key.stat().st_mode & 0o077 == 0
    await cluster.start_controller(GPUWARD_ROTATE_CREDENTIALS_DAYS="0.00002", GPUWARD_HSTS="30d")  # under 2 s
    env = cluster.client_env()
    assert env["GPUWARD_URL"].startswith("https://")

    # Clients of this host need no flag; the token that they make carries the hash of the authority.
    token = (await cluster.cli("join-token", "create", **env)).strip().splitlines()[-1]
    assert token.endswith(f".{cluster.authority.public_key_hash()}")
    await cluster.start_agent("gpu-1", gpus=1, GPUWARD_JOIN_TOKEN=token, GPUWARD_AGENT_PROXY_TLS="on")
    await _credential_is_replaced(cluster)

    # From a client through the gateway and the agent to the engine, and a log the other way.
    await cluster.apply("chat", model="hf:org/chat", resources={"gpus": 1, "gpu_memory": "1GiB"})
    await cluster.running("chat")
    worker = await cluster.get("/workers/gpu-1")
    port = int(worker["status"]["proxy_address"].rpartition(":")[2])
    async with cluster.session.post("/v1/chat/completions", json=CHAT) as answer:
        assert answer.status == 200, await answer.text()
    (instance,) = await cluster.instances("chat")
    async with cluster.session.get(f"/api/v1/instances/{instance['name']}/logs") as answer:
        assert answer.status == 200
        assert await answer.read()
    assert _speaks_tls(port)

    # A browser's session is marked as one over TLS.
    body = {"key": env["GPUWARD_API_KEY"]}
    async with cluster.session.post("/api/v1/session", json=body, headers={"Sec-Fetch-Site": "same-origin"}) as answer:
        assert answer.headers["Set-Cookie"].startswith("__Host-")
        assert "Secure" in answer.headers["Set-Cookie"]

    await _renewed_certificate_is_shown(cluster)
    async with cluster.session.get("/readyz") as answer:
        assert (await answer.json())["checks"]["certificate"]["ok"]
    for path in ("/readyz", "/api/v1/deployments", "/v1/models", "/ui/"):
        async with cluster.session.get(path) as answer:
            assert answer.headers["Strict-Transport-Security"] == f"max-age={30 * 86400}", path
            assert answer.headers.get("Server", "gpuward") == "gpuward", "no versions for strangers"
    async with cluster.session.get("/metrics") as answer:
        text = await answer.text()
    assert re.search(r"^gpuward_certificate_expiry_timestamp_seconds 1\.\d+e\+09$", text, re.MULTILINE), text
    assert re.search(r"^gpuward_certificate_authority_expiry_timestamp_seconds 2\.\d+e\+09$", text, re.MULTILINE), text
    assert (await cluster.get("/attention"))["items"] == [], "no certificate ends soon"
    assert re.search(r"^gpuward_gateway_certificate_not_replaced 0\.0$", text, re.MULTILINE)


async def _credential_is_replaced(cluster: TlsCluster) -> None:
    def connected_again() -> bool:
        text = (cluster.folder / "gpu-1.log").read_text()
        return "credential replaced" in text.partition("credential replaced")[1] and text.count("connected") > 1

    await cluster.until(connected_again, "the agent connects with a new credential")
    await cluster.until(lambda: cluster.worker_is("gpu-1", "ready"), "it is ready")


def _speaks_tls(port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=5) as opened, context.wrap_socket(opened) as secure:
        return secure.version() in ("TLSv1.2", "TLSv1.3")


async def _renewed_certificate_is_shown(cluster: TlsCluster) -> None:
    context = trusting(cluster.authority.certificate)
    before = await shown_by(cluster.port, context)
    await cluster.cli("ca", "init", "--data-dir", str(cluster.data_dir), "--name", "gpuward.example")

    async def replaced() -> bool:
        return await shown_by(cluster.port, context) != before

    await cluster.until(replaced, "the new certificate is shown", 30)


@pytest.mark.cases
async def test_a_running_cluster_moves_to_tls(cluster: TlsCluster) -> None:
    """As tls.md has it: agents get the authority and both addresses first, then the controller changes."""
    await cluster.start_controller()
    plain = cluster.url.replace("https:", "http:")
    await cluster.start_agent("gpu-1", gpus=1, url=plain, GPUWARD_AGENT_ON_EXIT="keep")
    await cluster.apply("chat", model="hf:org/chat", resources={"gpus": 1, "gpu_memory": "1GiB"})
    await cluster.running("chat")
    engines = {name: engine.pid for name, engine in cluster.engines().items()}
    assert engines

    await cluster.cli("ca", "init", "--data-dir", str(cluster.data_dir))
    await cluster.end("gpu-1")
    authority = str(cluster.authority.certificate)
    both = f"{cluster.url},{plain}"
    await cluster.start_agent("gpu-1", gpus=1, url=both, GPUWARD_AGENT_CA=authority, GPUWARD_AGENT_ON_EXIT="keep")
    await cluster.end("controller")
    await cluster.speak_tls()
    await cluster.start_controller()
    assert cluster.client_env()["GPUWARD_URL"] == cluster.url

    await cluster.until(lambda: cluster.worker_is("gpu-1", "ready"), "the agent has moved", 30)
    async with cluster.session.post("/v1/chat/completions", json=CHAT) as answer:
        assert answer.status == 200, await answer.text()
    assert {name: engine.pid for name, engine in cluster.engines().items()} == engines

    await cluster.end("gpu-1")
    await cluster.start_agent("gpu-1", gpus=1, url=plain, GPUWARD_AGENT_ON_EXIT="keep", ready=False)
    await cluster.until(lambda: f"Write {cluster.url}" in " ".join(cluster.log("gpu-1").split()), "it says what to do")
