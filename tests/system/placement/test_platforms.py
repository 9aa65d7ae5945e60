"""Cases of hosts that an engine does not run on."""

import pytest

from support.placement_site import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")
# Memory as stated, so that nothing has to be read of a model that is not there.
WANTED = {"name": "case", "engine": "vllm", "model": "hf:Qwen/Qwen3-32B", "resources": {"gpu_memory": "40GiB"}}


@pytest.mark.parametrize(
    "placement", [{}, {"workers": ["mac"]}, {"gpus": ["mac:0"]}], ids=["automatic", "worker", "gpu"]
)
async def test_c41_wrong_platform_is_the_same_reason_by_every_road(site: Site, placement: dict[str, list[str]]) -> None:
    await site.hosts("mac", "lin")
    await site.silence("lin")
    wanted = {**WANTED, "placement": placement}
    (item,) = await site.plan(wanted)
    assert item["explain"]["rejected"] == {"os_arch": 1, "not_ready": 1}
    applied = await site.applied(wanted)
    assert applied["status"]["explain"]["rejected"] == {"os_arch": 1, "not_ready": 1}
