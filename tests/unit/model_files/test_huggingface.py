"""The hub, read by range requests with the real library from a stand-in server on loopback."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from controller.domain.instances import Revision
from controller.leader.analyses import _finish
from controller.runtime.child import ChildError, run_child
from schemas.manifest.deployment import DeploymentSpec
from support.builders.model_files import safetensors, with_header
from support.standins.model_hub import COMMIT, Hub, running_hub

CONFIG = json.dumps({"num_attention_heads": 8, "vocab_size": 32}).encode()
BIG = 4 * 2**20  # bytes of weights that must not be downloaded


@pytest.fixture
def hub() -> Iterator[Hub]:
    shards = {f"m-{n}.safetensors": safetensors({f"t{n}": ("U8", [BIG], BIG)}) for n in range(6)}
    index = json.dumps({"weight_map": {f"t{n}": f"m-{n}.safetensors" for n in range(6)}}).encode()
    repos = {
        "org/good": {
            "model.safetensors": safetensors({"a": ("BF16", [4, 8], 64)}), "config.json": CONFIG,
            "onnx/model.safetensors": b"in a folder below: another model", "pytorch_model.bin": b"x" * 100,
        },
        "org/shards": shards | {"model.safetensors.index.json": index, "config.json": CONFIG},
        "org/bin": {"pytorch_model.bin": b"x" * 100, "config.json": CONFIG},
        "org/broken": {"model.safetensors": with_header(b"{{{{", b"\0" * 64)},
        "org/gated": {"model.safetensors": safetensors({"a": ("BF16", [4, 8], 64)})},
        "org/nothing": {"README.md": b"hello"},
    }  # fmt: skip
    with running_hub(Hub(repos, gated={"org/gated"})) as running:
        yield running


async def read(endpoint: str, repo: str, revision: str = "main") -> Any:
    target = "controller.model_files.analysis:model_facts"
    payload = {"repo": repo, "revision": revision, "endpoint": endpoint}
    return await run_child(target, payload, deadline_s=60, memory_bytes=2 * 2**30)


async def test_headers_and_config_are_read_at_the_commit_of_the_branch(hub: Hub) -> None:
    facts = await read(hub.url, "org/good")
    assert (facts["format"], facts["weight_bytes"], facts["parameters"]) == ("safetensors", 64, 32)
    assert (facts["heads"], facts["kv_heads"], facts["vocab"], facts["revision"]) == (8, 8, 32, COMMIT)


async def test_weights_are_not_downloaded(hub: Hub) -> None:
    facts = await read(hub.url, "org/shards")
    assert facts["weight_bytes"] == 6 * BIG
    assert hub.sent < BIG


async def test_the_length_of_bin_files_is_enough(hub: Hub) -> None:
    facts = await read(hub.url, "org/bin")
    assert (facts["format"], facts["weight_bytes"]) == ("bin", 100)


@pytest.mark.parametrize(
    ("repo", "revision", "words"),
    [
        ("org/none", "main", "hf:org/none@main does not exist or is not public"),
        ("org/good", "none", "hf:org/good@none does not exist or is not public"),
        ("org/-bad", "main", "hf:org/-bad@main does not exist or is not public"),
        ("org/broken", "main", r"the header of hf:org/broken@main/model\.safetensors is not valid JSON"),
    ],
)
async def test_a_model_unknown_to_the_hub_is_terminal(hub: Hub, repo: str, revision: str, words: str) -> None:
    with pytest.raises(ChildError, match=words) as raised:
        await read(hub.url, repo, revision)
    assert not raised.value.retryable


async def test_a_gated_model_is_retryable(hub: Hub) -> None:
    words = r"hf:org/gated@main/model\.safetensors is gated: .* HF_TOKEN"
    with pytest.raises(ChildError, match=words) as raised:
        await read(hub.url, "org/gated")
    assert raised.value.retryable
    revision = Revision(1, DeploymentSpec(engine="vllm", model="hf:org/gated"), "hash", datetime.now(UTC))
    assert _finish(revision, raised.value).reason == "model_gated"


async def test_missing_weights_are_retryable(hub: Hub) -> None:
    with pytest.raises(ChildError, match="holds no weights") as raised:
        await read(hub.url, "org/nothing")
    assert raised.value.retryable


async def test_a_hub_that_ignores_ranges_is_read_no_further(hub: Hub) -> None:
    hub.ranges = False
    assert (await read(hub.url, "org/shards"))["weight_bytes"] == 6 * BIG


async def test_an_unreachable_hub_is_retryable() -> None:
    with pytest.raises(ChildError, match=r"the hub at http://127\.0\.0\.1:9 .* HF_ENDPOINT .* path:") as raised:
        await read("http://127.0.0.1:9", "org/good")
    assert raised.value.retryable


async def test_secrets_in_urls_are_not_shown(hub: Hub) -> None:
    """Errors are shown and stored, and URLs of a store behind the hub carry a signature."""
    hub.elsewhere.add("org/good")
    with pytest.raises(ChildError, match=r"model\.safetensors cannot be read: .*403") as raised:
        await read(hub.url, "org/good")
    assert "secret" not in str(raised.value)
    assert raised.value.retryable
