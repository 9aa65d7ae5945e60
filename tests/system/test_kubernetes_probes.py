"""The probes of deploy/kubernetes, asked of real daemons that run with the arguments and variables of the manifests."""

import asyncio
import base64
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import yaml

from support.processes.cluster import Cluster

pytestmark = pytest.mark.cases
FOLDER: Final = Path(__file__).parents[2] / "deploy" / "kubernetes"
PROBES: Final = ("startupProbe", "livenessProbe", "readinessProbe")
SECRETS: Final = {"GPUWARD_GATEWAY_SECRET": "a-long-random-text"}
HANGS_S: Final = 1.0


def container(daemon: str) -> dict[str, Any]:
    (found,) = (
        one["spec"]["template"]["spec"]["containers"][0]
        for one in yaml.safe_load_all((FOLDER / f"{daemon}.yaml").read_text())
        if "template" in one.get("spec", {})
    )
    return dict(found)


class Pods:
    """One pod of each workload on this host, on ports of their own."""

    def __init__(self, cluster: Cluster, dsn: str) -> None:
        self.cluster = cluster
        self._secrets = {**SECRETS, "GPUWARD_DATABASE_URL": dsn}
        self.ports: dict[str, int] = {}
        for daemon in ("controller", "gateway", "agent"):
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.ports[daemon] = free.getsockname()[1]

    def start(self, daemon: str, **here: str) -> None:
        """`here`: variables in place of those of the manifest, and of its secrets."""
        manifest = container(daemon)
        mine = {"0.0.0.0": "127.0.0.1", "8420": str(self.ports[daemon]), "http://gpuward-controller:8420": self.url}  # noqa: S104
        env = {one["name"]: one.get("value", "") for one in manifest["env"]}
        if daemon != "agent":
            env |= self._secrets
        self.cluster.start(daemon, *(mine.get(word, word) for word in manifest["args"]), **{**env, **here})

    async def start_agent(self) -> None:
        folder = self.cluster.folder
        token = folder / "token"
        token.write_text((await self.cluster.post("/tokens", {}))["token"])
        hosts = folder / "hosts.yaml"
        hosts.write_text(
            yaml.safe_dump({"workers": [{"name": "node-1", "gpus": [{"model": "A100", "memory": "40GiB"}]}]})
        )
        self.start(
            "agent", GPUWARD_AGENT_CONTROLLER_URL=self.url, GPUWARD_AGENT_NAME="node-1",
            GPUWARD_AGENT_ADVERTISE="127.0.0.1",
            GPUWARD_AGENT_PROXY_PORT=str(self.ports["agent"]), GPUWARD_AGENT_JOIN_TOKEN_FILE=str(token),
            GPUWARD_AGENT_DATA_DIR=str(folder / "agent"), GPUWARD_AGENT_CACHE_DIR=str(folder / "models"),
            GPUWARD_AGENT_SIMULATE=str(hosts),
        )  # fmt: skip

    @property
    def url(self) -> str:
        """Of the controller."""
        return f"http://127.0.0.1:{self.ports['controller']}"

    async def passes(self, daemon: str, probe: str) -> bool:
        """Asks as the kubelet does: a connection of its own, and a status from 200 to 399 is well."""
        asked = container(daemon)[probe]["httpGet"]
        url = f"http://127.0.0.1:{self.ports[daemon]}{asked['path']}"
        try:
            async with aiohttp.ClientSession() as session, session.get(url, timeout=LIMIT) as answer:
                return 200 <= answer.status < 400
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def answers(self, daemon: str, **expected: bool) -> None:
        """Waits until probes answer so; `liveness=True` and the like."""

        async def so() -> bool:
            return [await self.passes(daemon, f"{one}Probe") for one in expected] == list(expected.values())

        await self.cluster.until(so, f"{daemon}: {expected}", 60)


LIMIT: Final = aiohttp.ClientTimeout(total=HANGS_S)


@pytest.fixture
async def pods(data_dir: Path, database: str) -> AsyncIterator[Pods]:
    cluster = Cluster(data_dir)
    yield Pods(cluster, database)
    await cluster.aclose()


async def test_each_probe_says_what_it_is_for(pods: Pods) -> None:
    cluster = pods.cluster
    keys = cluster.folder / "keys"  # as the Secret that is mounted
    keys.write_bytes(base64.b64encode(secrets.token_bytes(32)))
    keys.chmod(0o600)
    pods.start("controller", GPUWARD_DATA_DIR=str(cluster.data_dir), GPUWARD_SECRETS_KEY_FILE=str(keys))
    await cluster.until(cluster._leads, "the controller leads", 60)
    await pods.answers("controller", startup=True, liveness=True, readiness=True)
    pods.start("gateway")
    await pods.answers("gateway", startup=True, liveness=True, readiness=True)
    await pods.start_agent()
    await pods.answers("agent", liveness=True, readiness=True)

    # No controller is left: gateways serve models, and agents keep their engines.
    cluster.kill("controller")
    await pods.answers("agent", liveness=True, readiness=False)
    await asyncio.sleep(HANGS_S)
    for _ in range(3):
        await pods.answers("gateway", startup=True, liveness=True, readiness=True)

    # One that hangs takes connections still.
    cluster.signal("agent", signal.SIGSTOP)
    assert not await pods.passes("agent", "livenessProbe")
    cluster.signal("agent", signal.SIGCONT)
    await pods.answers("agent", liveness=True)

    # One that ends is left out at once, and lives on until its answers have ended.
    cluster.signal("gateway", signal.SIGTERM)
    await pods.answers("gateway", liveness=True, readiness=False)
