"""What agent and controller say of containers: older peers are told nothing of it, newer ones all."""

import msgspec
import orjson

from schemas.wire import (
    Command,
    ContainerOrder,
    Inventory,
    InventoryChanged,
    ProcessReport,
    ReportedHost,
    ReportedRuntime,
    StartOrder,
    agent_message,
    controller_message,
    encode,
)

START = Command(
    command_id=1, term=1, instance="d-1", epoch=1, verb="start",
    start=StartOrder(
        deployment="d", deployment_uid="u", argv=("vllm", "serve", "--host", "{host}"), claims=(), needs_port=True,
        probe=None, start_timeout_s=1, drain_time_s=1,
        container=ContainerOrder(
            image="vllm/vllm-openai@sha256:1f2e", pull="never", shm_size_mib=8192, volumes={"/data": "/data:ro"},
            models=("/models/a",), host_network=True,
        ),
    ),
)  # fmt: skip
RUNTIME = ReportedRuntime(
    name="docker", usable=True, reason="no NVIDIA container toolkit on this host", version="28.2.2"
)
HOST = ReportedHost(os="linux", arch="x86_64", hostname="h", memory_mib=1, cpu_milli=1000, runtimes=(RUNTIME,))
REPORT = ProcessReport(
    instance="d-1", epoch=1, seq=1, state="running", image_digest="sha256:1f2e", image_repository="vllm/vllm-openai"
)


def test_all_of_a_container_passes_between_newer_peers() -> None:
    assert controller_message.decode(encode(START, 4)) == START
    changed = InventoryChanged(inventory=Inventory(host=HOST, gpus=()))
    assert agent_message.decode(encode(changed, 4)) == changed
    assert agent_message.decode(encode(REPORT, 4)) == REPORT


def test_an_older_peer_is_told_nothing_of_containers() -> None:
    assert "container" not in orjson.loads(encode(START, 3))["start"]
    changed = InventoryChanged(inventory=Inventory(host=HOST, gpus=()))
    assert "runtimes" not in orjson.loads(encode(changed, 3))["inventory"]["host"]
    assert not {"image_digest", "image_repository"} & orjson.loads(encode(REPORT, 3)).keys()


def test_an_order_and_a_host_of_an_earlier_version_have_no_container() -> None:
    order = orjson.loads(encode(START, 3))["start"]
    assert msgspec.convert(order, StartOrder).container is None
    host = msgspec.to_builtins(HOST)
    del host["runtimes"]
    assert msgspec.convert(host, ReportedHost).runtimes == ()
