"""What is true of every reading of an untrusted model: facts or a clear error, within bounds."""

import json

from controller.domain.model_facts import ModelFacts, facts_from_json, facts_to_json
from controller.engines.registry import engine_for
from controller.model_files.analysis import facts_of
from controller.model_files.files import MetadataError
from schemas.manifest.deployment import DeploymentSpec
from support.builders.bounds import bounded
from support.builders.memory_files import MemoryFiles

SPECS = [
    DeploymentSpec.model_validate({"engine": engine, "model": "gguf:/m" if engine == "llama-cpp" else "path:/m"})
    for engine in ("auto", "vllm", "sglang", "transformers", "llama-cpp")
]


def outcome(files: MemoryFiles) -> ModelFacts | MetadataError:
    try:
        return facts_of(files)
    except MetadataError as error:
        return error


def read(contents: dict[str, bytes]) -> None:
    """The files give facts from which every engine computes a need, or an error that says what is wrong."""
    files = MemoryFiles(contents)
    with bounded():
        found = outcome(files)
    # Each file once, and the beginning of small ones once more: it may be a Git LFS pointer.
    assert files.read_bytes <= 2 * sum(files.sizes.values())
    if isinstance(found, MetadataError):
        assert 0 < len(str(found)) < 2000
        assert "\0" not in str(found)
        return
    assert 0 < found.weight_bytes <= sum(files.sizes.values())
    assert found.layers is None or 0 <= (found.full_layers or 0) + found.uncached_layers <= found.layers
    stored = json.dumps(facts_to_json(found))
    assert "\\u0000" not in stored  # PostgreSQL refuses it
    assert facts_from_json(json.loads(stored)) == found
    for spec in SPECS:
        need = engine_for(spec).need(spec, json.loads(stored))
        sizes = [need.memory_mib, need.host_memory_mib, *(share.memory_mib for share in need.shares)]
        assert all(size is None or 0 <= size < 2**60 for size in sizes)
