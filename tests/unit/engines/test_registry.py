"""Which engine runs a spec, and what an apply refuses, with the field and the fix."""

from typing import Any

import pytest

from controller.engines.base import SpecError
from controller.engines.registry import engine_for, validate
from schemas.manifest.deployment import DeploymentSpec


def spec(**fields: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"command": ["true"]}, "custom"),
        ({"model": "hf:org/name"}, "auto"),
        ({"model": "gguf:/m.gguf"}, "auto"),
        ({"model": "hf:org/name", "engine": "vllm", "resources": {"max_workers": 2}}, "vllm"),
        ({"model": "path:/m", "engine": "sglang"}, "sglang"),
        ({"model": "gguf:/m.gguf", "engine": "llama-cpp"}, "llama-cpp"),
        ({"model": "path:/m", "engine": "transformers"}, "transformers"),
        ({"model": "gguf:/m.gguf", "command": ["serve", "{model}"]}, "custom"),
        ({"engine": "simulated"}, "simulated"),
        ({"command": ["serve", "{port}"], "serving": {"apps": {"paths": ["/"], "csp": "none"}}}, "custom"),
    ],
)
def test_the_engine_of_a_spec(fields: dict[str, Any], name: str) -> None:
    assert engine_for(spec(**fields)).name == name
    validate(spec(**fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "path:/a{port}"}, "model: braces"),
        ({"model": "path:/a@b"}, "model: .*rename"),
        ({"model": "hf:a/b", "engine": "transformers", "parallel": {"tp": 2}}, "parallel: engine transformers"),
        ({"model": "gguf:/m", "parallel": {"tp": 2}}, "parallel: engine llama-cpp"),
        ({"model": "hf:a/b", "engine": "transformers", "resources": {"max_workers": 2}}, "resources.max_workers"),
        ({"command": ["x"], "resources": {"max_workers": 2}}, "resources.max_workers: engine custom"),
        ({"model": "gguf:/m", "engine": "vllm"}, "model: engine vllm needs"),
        ({"model": "hf:a/b", "engine": "llama-cpp"}, "model: engine llama-cpp needs model: gguf:"),
        ({"engine": "sglang"}, "model: engine sglang needs"),
        ({"command": ["x"], "parallel": {"tp": 2}}, "parallel: engine custom"),
        ({"command": ["x"], "args": {"a": 1}}, "args: engine custom"),
        ({"command": ["x"], "serving": {"apps": {"paths": ["/"]}}}, "serving.apps: .*{port}"),
        *(
            ({**engine, "serving": {"apps": {"paths": ["/"]}}}, "serving.apps: is for engine custom")
            for engine in (
                {"model": "hf:org/name"},
                {"model": "hf:org/name", "engine": "vllm"},
                {"model": "gguf:/m.gguf", "engine": "llama-cpp"},
                {"engine": "simulated"},
            )
        ),
        ({"command": ["x"], "probe": {"path": "/x"}}, "probe: .*{port}"),
        ({"command": ["x"], "resources": {"gpus": 0, "gpu_memory": "1GiB"}}, "resources.gpus: is 0"),
        ({"command": ["x"], "resources": {"gpus": 0, "exclusive": True}}, "resources.gpus: is 0"),
        (
            {"command": ["x"], "resources": {"gpus": 2}, "placement": {"gpus": ["a:0"]}},
            "placement.gpus: .*mismatch",
        ),
        (
            {"engine": "simulated", "parallel": {"tp": 4}, "placement": {"gpus": ["a:0"]}},
            "placement.gpus: names 1",
        ),
        ({"command": ["x"], "placement": {"all_of": True}}, "placement.all_of: .*name nothing"),
        (
            {"command": ["x"], "resources": {"gpus": 1}, "placement": {"gpus": ["a:0", "a:1"], "all_of": True}},
            "placement.all_of: takes all 2 named GPUs, the spec needs 1: count_mismatch",
        ),
        (
            {"engine": "simulated", "placement": {"workers": ["a", "b"], "all_of": True}},
            "resources.max_workers: must be 2 .*, got 1",
        ),
        (
            {"engine": "simulated", "resources": {"max_workers": 3}, "placement": {"workers": ["a"], "all_of": True}},
            "resources.max_workers: must be 1 .*, got 3",
        ),
        (
            {
                "engine": "simulated",
                "resources": {"max_workers": 2, "gpus": 3},
                "placement": {"workers": ["a", "b"], "all_of": True},
            },
            "resources.gpus: 3 GPUs cannot be divided evenly",
        ),
        (
            {
                "engine": "simulated",
                "resources": {"max_workers": 2},
                "parallel": {"tp": 2, "dp": 3},
                "placement": {"workers": ["a", "b"], "all_of": True},
            },
            "parallel.dp: 3 copies cannot be divided evenly",
        ),
        ({"model": "hf:a/b", "resources": {"gpus": 0}}, "resources.gpus: .*device: cpu"),
        ({"model": "hf:a/b", "args": {"device": "cpu"}, "resources": {"gpus": 1}}, "resources: args.device is cpu"),
        (
            {"model": "hf:a/b", "args": {"device": "cpu"}, "placement": {"gpus": ["a:0"]}},
            "resources: args.device is cpu",
        ),
        ({"model": "hf:a/b", "args": {"port": 80}}, "args.port: is set by Gpuward"),
        (
            {"model": "hf:a/b", "engine": "transformers", "args": {"force_model": "x"}},
            "args.force_model: is set by Gpuward",
        ),
        ({"model": "hf:a/b", "args": {"--dtype": "x"}}, "args.--dtype: .*without dashes"),
        ({"model": "hf:a/b", "args": {"dtype": [True]}}, "args.dtype: a list may hold only"),
        ({"engine": "simulated", "args": {"load_seconds": {"a": 1}}}, "args.load_seconds: "),
        ({"engine": "simulated", "args": {"exit_code": {"a": 1}}}, "args.exit_code: "),
        ({"engine": "simulated", "args": {"load_second": 2}}, "args.load_second: .*did you mean 'load_seconds'"),
        ({"engine": "simulated", "args": {"zzz": 2}}, "args.zzz: .*known: analysis_seconds"),
        ({"engine": "simulated", "args": {"load_seconds": "soon"}}, "args.load_seconds: .*not a valid duration"),
        ({"engine": "simulated", "args": {"load_seconds": 4000}}, "args.load_seconds: must be at most"),
        ({"engine": "simulated", "args": {"exit_code": 256}}, "args.exit_code: .*0 to 255"),
        ({"engine": "simulated", "args": {"exit_code": True}}, "args.exit_code: .*0 to 255"),
        ({"engine": "simulated", "args": {"ignore_sigterm": "yes"}}, "args.ignore_sigterm: must be true or false"),
        ({"engine": "simulated", "args": {"memory": 20}}, "args.memory: .*with a unit"),
        ({"engine": "simulated", "args": {"utilization": 101}}, "args.utilization: must be a percentage"),
        ({"engine": "simulated", "args": {"utilization": []}}, "args.utilization: must have 1"),
        ({"engine": "simulated", "args": {"utilization": [[1, 2, 3]]}}, "args.utilization: must be a percentage"),
        ({"engine": "simulated", "args": {"utilization": [[1, "x"]]}}, "args.utilization: must be a percentage"),
    ],
)
def test_specs_that_cannot_work(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match="^" + words):
        validate(spec(**fields))
