"""Controller and agent of different versions: each serves the other, and nothing is refused or restarted."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.wire.protocol import HIGHEST_PROTOCOL
from support.processes.cluster import Cluster
from support.processes.earlier_versions import unpack

HOST = "gpu-1"
# The commit, and the module of its command line. Both speak protocol 3 and name no range.
EARLIER = [pytest.param("ce8d02c", "gpuward.cli", id="ce8d02c"), pytest.param("b26a3b6", "cli", id="b26a3b6")]
SHORT = {"GPUWARD_UNREACHABLE_AFTER_S": "15"}
QUESTION = {"model": "d", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The packages of a commit."""
    return lambda commit: unpack(commit, tmp_path_factory.mktemp(commit))


async def _lives(cluster: Cluster) -> None:
    """A simulated model is started, serves, is read, restarts after a crash, and stops."""
    await cluster.apply("d", args={"memory": "4GiB"}, resources={"gpus": 1})
    await cluster.running("d")
    (instance,) = await cluster.instances("d")
    async with cluster.session.post("/v1/chat/completions", json=QUESTION) as answer:
        assert (answer.status, bool((await answer.json())["choices"])) == (200, True)
    cluster.engines()[instance["name"]].kill()
    await cluster.until(lambda: _epoch(cluster, 2), "the crashed engine runs again", 40)
    await cluster.until(lambda: _read(cluster), "its GPU is read", 40)
    (worker,) = (await cluster.get("/workers"))["items"]
    assert (worker["status"]["phase"], worker["status"].get("conditions", [])) == ("ready", [])
    reasons = {event["reason"] for event in (await cluster.get("/events?limit=500"))["items"]}
    assert not reasons & {"agent_message_malformed", "no_common_protocol", "start_refused", "order_not_sent"}
    await cluster.delete("d")
    await cluster.gone("d")
    assert not cluster.engines()


async def _epoch(cluster: Cluster, epoch: int) -> bool:
    (instance,) = await cluster.instances("d")
    return instance["status"]["phase"] == "running" and instance["status"]["epoch"] == epoch


async def _read(cluster: Cluster) -> bool:
    gpus = (await cluster.get("/gpus"))["items"]
    return any(gpu["status"]["utilization"] is not None for gpu in gpus)


@pytest.mark.cases
@pytest.mark.parametrize(
    ("commit", "module", "protocol"),
    [pytest.param(*one.values, 3, id=one.id) for one in EARLIER] + [pytest.param("9fe23797", "cli", 4, id="9fe23797")],
)
async def test_an_old_agent_serves_a_new_controller(
    cluster: Cluster, code: Callable[[str], Path], commit: str, module: str, protocol: int
) -> None:
    await cluster.start_controller(**SHORT)
    cluster.run_code(module, code(commit))
    await cluster.start_agent(HOST, gpus=2)
    await _lives(cluster)
    worker = await cluster.get(f"/workers/{HOST}")
    assert worker["status"]["protocol"] == protocol


@pytest.mark.cases
@pytest.mark.parametrize(("commit", "module"), EARLIER)
async def test_a_new_agent_serves_an_old_controller_and_then_a_new_one(
    cluster: Cluster, code: Callable[[str], Path], commit: str, module: str
) -> None:
    cluster.run_code(module, code(commit))
    await cluster.start_controller(**SHORT)
    cluster.run_code()
    await cluster.start_agent(HOST, gpus=2)
    await _lives(cluster)
    await cluster.apply("kept", args={"memory": "4GiB"}, resources={"gpus": 1})
    await cluster.running("kept")
    before = {name: process.pid for name, process in cluster.engines().items()}
    process = cluster.processes.pop("controller")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    await cluster.start_controller(**SHORT)
    await cluster.until(lambda: _speaks(cluster, HIGHEST_PROTOCOL), "the agent uses the newer protocol", 60)
    await cluster.running("kept")
    assert {name: process.pid for name, process in cluster.engines().items()} == before


async def _speaks(cluster: Cluster, protocol: int) -> bool:
    return bool((await cluster.get(f"/workers/{HOST}"))["status"].get("protocol") == protocol)
