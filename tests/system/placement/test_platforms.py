"""Cases of hosts that do not support an engine."""

import pytest

from support.processes.placement_site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")
# With stated memory, so that the model, which does not exist, is not read.
WANTED = {"name": "case", "engine": "vllm", "model": "hf:Qwen/Qwen3-32B", "resources": {"gpu_memory": "40GiB"}}


@pytest.mark.parametrize(
    "placement", [{}, {"workers": ["mac"]}, {"gpus": ["mac:0"]}], ids=["automatic", "worker", "gpu"]
)
async def test_c41_wrong_platform_is_the_same_reason_on_every_path(site: Site, placement: dict[str, list[str]]) -> None:
    await site.hosts("mac", "lin")
    await site.silence("lin")
    wanted = {**WANTED, "placement": placement}
    (item,) = await site.plan(wanted)
    assert item["explain"]["rejected"] == {"os_arch": 1, "not_ready": 1}
    applied = await site.applied(wanted)
    assert applied["status"]["explain"]["rejected"] == {"os_arch": 1, "not_ready": 1}
