"""Which architectures vLLM serves by the version of its image, and the script that writes the table."""

import json
import runpy
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.engines.registry import engine_for
from controller.engines.servers.vllm_versions import image_version
from controller.scheduling.estimate import input_hash
from schemas.placement_reasons import Reason
from support.builders.engine_specs import LLAMA, asks, need, spec

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = runpy.run_path(str(ROOT / "bench" / "vllm_architectures.py"))
DATA: dict[str, Any] = json.loads(
    (ROOT / "controller" / "engines" / "servers" / "vllm_architectures.json").read_text("utf-8")
)


def in_docker(image: str | None = None) -> dict[str, Any]:
    return {"runtime": "docker"} | ({} if image is None else {"image": image})


def refused(architecture: str, **fields: Any) -> str:
    """The reason against an architecture; empty: it is served."""
    facts = replace(LLAMA, architectures=(architecture,))
    (asked,) = asks("vllm", facts, **fields)
    if asked.layouts:
        return ""
    assert asked.refused == (Reason.ENGINE_UNSUPPORTED,)
    return need("vllm", facts, **fields).notes[0]


@pytest.mark.parametrize(
    ("architecture", "tag", "words"),
    [
        ("LlamaForCausalLM", "v0.28.0", ""),
        ("MllamaForConditionalGeneration", "v0.10.2", ""),
        ("MllamaForConditionalGeneration", "v0.28.0", "vllm 0.28.0 does not support Mllama"),
        ("BambaForCausalLM", "v0.23.0-cu129", ""),
        ("BambaForCausalLM", "v0.24.0-cu129", "0.23.0 is the last version that does"),
        ("DeepseekV4ForCausalLM", "v0.18.0", "is the first version that does"),
        ("DeepseekV4ForCausalLM", "v0.28.0", ""),
        # Of two known versions the lower one counts: 0.23.1 is not known.
        ("BambaForCausalLM", "v0.23.1", ""),
        ("Phi3SmallForCausalLM", "v0.9.2", ""),
        ("Phi3SmallForCausalLM", "v0.10.0", "0.9.2 is the last version that does"),
        # Older than all known ones, or no version: nothing is known against it.
        ("BambaForCausalLM", "v0.6.3", ""),
        ("BartForConditionalGeneration", "v0.28.0", "plugin"),
        ("T5ForConditionalGeneration", "v0.28.0", "encoder-decoder"),
        # What no version has may run by Transformers' own code.
        ("SomethingNewForCausalLM", "v0.28.0", ""),
        # It makes these of the generating model.
        ("Qwen3ForSequenceClassification", "v0.28.0", ""),
    ],
)  # fmt: skip
def test_by_the_version_of_the_image(architecture: str, tag: str, words: str) -> None:
    found = refused(architecture, **in_docker(f"vllm/vllm-openai:{tag}"))
    assert words in found
    assert bool(found) is bool(words)


def test_the_version_of_a_registry_with_a_port_and_of_the_default_image() -> None:
    assert refused("BambaForCausalLM", **in_docker("registry.local:5000/mirror/vllm-openai:v0.24.0@sha256:" + "0" * 64))
    assert not refused("BambaForCausalLM", **in_docker("registry.local:5000/mirror/vllm-openai:v0.23.0"))
    assert "0.28.0" in refused("BambaForCausalLM", **in_docker())


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("rocm/vllm:rocm6.3.1_vllm_0.23.0_20260521", "0.23.0"),
        ("rocm/vllm:rocm6.3.1_vllm0.24.0", "0.24.0"),
        ("own/vllm:py3.12-0.24.0", "0.24.0"),
        ("own/vllm:cuda-12.8-v0.23.0", "0.23.0"),
        ("own/vllm:12.8-0.24.0.post1", "0.24.0"),
        ("nvcr.io/nvidia/vllm:25.09-py3", None),
        ("own/vllm:2026.10.1", None),
        ("own/vllm:cuda-12.8", None),
        ("registry.local:5000/vllm-openai", None),
    ],
)
def test_versions_of_other_things_in_a_tag_are_not_vllms(image: str, version: str | None) -> None:
    """Bamba was dropped after 0.23."""
    assert image_version(spec("vllm", **in_docker(image))) == version
    if version is not None:
        assert bool(refused("BambaForCausalLM", **in_docker(image))) is (version == "0.24.0")


def test_without_a_version_only_what_all_present_ones_lack_is_refused() -> None:
    later = next(name for name, spans in DATA["architectures"].items() if spans == [["0.33.0", "0.33.0"]])
    dropped = next(name for name, spans in DATA["architectures"].items() if "0.28.0" <= spans[-1][1] < "0.33.0")
    for fields in ({}, in_docker("vllm/vllm-openai:nightly"), in_docker("own/server:1.0")):
        assert not refused(later, **fields)
        assert not refused(dropped, **fields)
        assert "0.10.2 is the last version" in refused("MllamaForConditionalGeneration", **fields)


def test_transformers_own_code_is_the_users_choice() -> None:
    assert not refused("BambaForCausalLM", args={"model-impl": "transformers"}, **in_docker())
    assert "model-impl: transformers" in refused("BambaForCausalLM", **in_docker())


def test_another_image_is_another_need() -> None:
    hashes = {
        input_hash(one, engine_for(one))
        for one in (
            spec("vllm", **in_docker("vllm/vllm-openai:v0.23.0")),
            spec("vllm", **in_docker("vllm/vllm-openai:v0.28.0")),
        )
    }
    assert len(hashes) == 2


def test_the_table_follows_the_registry() -> None:
    """Known of vLLM's own list of formerly supported models in 0.28: 32 that 0.10 had are gone."""
    versions, served = DATA["versions"], DATA["architectures"]
    assert versions == sorted(versions, key=SCRIPT["number"])

    def has(name: str, version: str) -> bool:
        at = versions.index(version)
        return any(versions.index(first) <= at <= versions.index(last) for first, last in served[name])

    gone = [name for name in served if has(name, "0.10.2") and not has(name, "0.28.0")]
    assert len(gone) >= 32
    assert {"JAISLMHeadModel", "QWenLMHeadModel", "XverseForCausalLM", "AquilaForCausalLM"} <= set(gone)
    assert not {"LlamaForCausalLM", "WhisperForConditionalGeneration"} & set(gone)
    assert "BertModel" in DATA["pooling"]
    assert "WhisperForConditionalGeneration" not in DATA["pooling"]


def registry(generating: dict[str, int], pooling: dict[str, int], former: dict[str, str]) -> str:
    return (
        "import torch\n"
        f"_TEXT_GENERATION_MODELS = {generating!r}\n_MULTIMODAL_MODELS: dict = {{}}\n_EMBEDDING_MODELS = {pooling!r}\n"
        f"_PREVIOUSLY_SUPPORTED_MODELS = {former!r}\n_VLLM_MODELS = {{**_TEXT_GENERATION_MODELS}}\n"
    )


def test_the_script_adds_versions_from_wheels_in_any_order(tmp_path: Path) -> None:
    sources = {
        "0.10.0": registry({"A": 1, "B": 1}, {"P": 1}, {}),
        "0.9.2": registry({"A": 1, "C": 1}, {}, {}),
        "0.11.0": registry({"A": 1}, {"P": 1}, {"B": "0.10.0"}),
        "0.12.0": registry({"A": 1, "B": 1}, {"P": 1, "A": 1}, {}),
    }
    data: dict[str, Any] = {"versions": [], "architectures": {}, "pooling": [], "plugins": []}
    for version, source in sources.items():
        wheel = tmp_path / f"vllm-{version}-cp38-abi3-manylinux_2_28_x86_64.whl"
        with zipfile.ZipFile(wheel, "w") as file:
            file.writestr(SCRIPT["REGISTRY"], source)
        data = SCRIPT["with_version"](data, *SCRIPT["_source"](str(wheel)))
    assert data["versions"] == ["0.9.2", "0.10.0", "0.11.0", "0.12.0"]
    assert data["architectures"] == {
        "A": [["0.9.2", "0.12.0"]], "B": [["0.10.0", "0.10.0"], ["0.12.0", "0.12.0"]], "C": [["0.9.2", "0.9.2"]],
        "P": [["0.10.0", "0.12.0"]],
    }  # fmt: skip
    assert data["pooling"] == ["P"]
    assert json.loads(SCRIPT["text_of"](data)) == data
    again = SCRIPT["with_version"](data, "0.11.0", sources["0.11.0"])
    assert again == data


def test_a_registry_of_another_form_is_refused() -> None:
    with pytest.raises(SystemExit, match="its form has changed"):
        SCRIPT["tables"]("X = {}")
