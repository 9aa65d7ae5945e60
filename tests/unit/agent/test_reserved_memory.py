"""Memory reserved by the operator, and memory used by others, in the agent's inventory."""

import pytest
from pydantic import ValidationError

from agent.gpus.simulated import SimulatedReader
from agent.host_inventory.host import real_host, simulated_host
from agent.host_inventory.inventory import InventoryWatch
from agent.settings import AgentSettings
from schemas.simulated import SimulatedHosts

GIB = 1024
WORKER = SimulatedHosts.model_validate(
    {
        "workers": [
            {
                "name": "w",
                "host_memory": "64GiB",
                "reserved": {"host_memory": "2GiB", "gpu_memory": "1GiB"},
                "gpus": [{"model": "MI300", "vendor": "amd", "memory": "24GiB", "foreign_memory": "3GiB"}],
            }
        ]
    }
).expanded()["w"]


def settings(**fields: str) -> AgentSettings:
    return AgentSettings(controller_url="http://127.0.0.1:1", **fields)  # type: ignore[arg-type] # sizes are text


def test_reserved_sizes_have_units() -> None:
    assert settings().reserve_gpu_memory is None
    assert settings(reserve_gpu_memory="2GiB", reserve_host_memory="512MiB").reserve_gpu_memory == 2 * GIB
    with pytest.raises(ValidationError, match="reserve_gpu_memory"):
        settings(reserve_gpu_memory="much")


@pytest.mark.parametrize(("option", "expected"), [(None, GIB), (0, 0), (5 * GIB, 5 * GIB)])
async def test_the_option_overrides_the_files_gpu_reserve(option: int | None, expected: int) -> None:
    reader = SimulatedReader(WORKER, lambda: (), lambda: 0.0)
    inventory = await InventoryWatch(reader, simulated_host(WORKER, {}), reserve_gpu_mib=option).read()
    assert inventory.host.reserved_mib == 2 * GIB
    assert inventory.gpus is not None
    (gpu,) = inventory.gpus
    assert (gpu.vendor, gpu.memory_mib, gpu.reserved_mib, gpu.used_mib) == ("amd", 24 * GIB, expected, 3 * GIB)


def test_the_option_overrides_the_files_host_reserve() -> None:
    assert simulated_host(WORKER, {}, 0).reserved_mib == 0
    host = real_host({}, 3 * GIB)
    assert host.reserved_mib == 3 * GIB
    assert host.memory_mib > 0
