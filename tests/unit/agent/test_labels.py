"""The agent's own labels: what they say, that a user cannot set them, and that they are bounded."""

from collections.abc import Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from agent.gpus.simulated import SimulatedReader
from agent.host_inventory.host import simulated_host
from agent.host_inventory.inventory import InventoryWatch
from schemas.simulated import SimulatedWorker
from schemas.wire import ReportedGpu, ReportedHost
from schemas.worker_labels import agent_labels

H100 = "NVIDIA H100 80GB HBM3"


def host(**fields: Any) -> ReportedHost:
    facts = {"os": "linux", "arch": "x86_64", "hostname": "gpu-1", "driver": "580.95", "memory_mib": 1, "cpu_milli": 1}
    return ReportedHost(**(facts | fields))


def gpus(*models: str) -> Sequence[ReportedGpu]:
    return [ReportedGpu(uuid=f"GPU-{n}", index=n, model=model, memory_mib=1) for n, model in enumerate(models)]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (gpus(H100, H100), {"gpu-model": "NVIDIA-H100-80GB-HBM3", "gpu-count": "2"}),
        (gpus(H100, "Tesla T4"), {"gpu-count": "2"}),
        (gpus(), {"gpu-count": "0"}),
        (None, {}),
    ],
)
def test_they_follow_from_the_gpus(found: Sequence[ReportedGpu] | None, expected: dict[str, str]) -> None:
    both = {"driver": "580.95", "hostname": "gpu-1"}
    assert agent_labels(host(), found) == {f"gpuward/{name}": value for name, value in (both | expected).items()}


def test_values_are_bounded_and_printable() -> None:
    found = agent_labels(host(driver="5 \x1b[31m80 " * 100, hostname="\n"), None)
    assert list(found) == ["gpuward/driver"]
    value = found["gpuward/driver"]
    assert len(value) <= 253
    assert value.isprintable()
    assert " " not in value
    assert "gpuward/driver" not in agent_labels(host(driver=None), None)


def watch(**fields: Any) -> InventoryWatch:
    worker = SimulatedWorker.model_validate({"name": "gpu-1", "gpus": [{"model": H100, "memory": "80GiB"}]} | fields)
    return InventoryWatch(SimulatedReader(worker, lambda: (), lambda: 0.0), simulated_host(worker, {"zone": "a"}))


async def test_they_are_sent_with_the_inventory() -> None:
    labels = (await watch().read()).host.labels
    assert labels["zone"] == "a"
    assert labels["gpuward/gpu-model"] == "NVIDIA-H100-80GB-HBM3"
    assert labels.keys() - {"zone"} == {f"gpuward/{name}" for name in ("gpu-model", "gpu-count", "driver", "hostname")}


async def test_a_controller_that_takes_64_labels_is_sent_no_more() -> None:
    many = {f"l{n}": "x" for n in range(63)}
    labels = (await watch(labels=many).read()).host.labels
    assert labels == many | {"zone": "a"}


def test_a_file_of_simulated_hosts_cannot_set_them() -> None:
    with pytest.raises(ValidationError, match="gpuward/driver: labels that begin with gpuward/ are set by the agent"):
        watch(labels={"gpuward/driver": "1"})
