"""Any input to the parser of manifests gives specs or a refusal with a message, and nothing else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.engines.base import SpecError
from controller.engines.registry import validate
from schemas.manifest.deployment import DeploymentManifest
from schemas.manifest.parse import Manifest, parse_manifest_objects, parse_manifests
from schemas.manifest.problems import ManifestError
from support.builders.bounds import bounded
from support.profiles import TIMEOUT_S, reader_settings

pytestmark = pytest.mark.timeout(TIMEOUT_S)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
FIELDS = st.sampled_from(
    [
        "kind", "name", "model", "engine", "runtime", "command", "args", "env", "replicas", "restart",
        "start_timeout", "drain_time", "probe", "priority", "preempt", "movable", "update", "resources",
        "gpus", "gpu_memory", "exclusive", "max_workers", "host_memory", "cpus", "parallel", "tp", "pp", "dp",
        "placement", "strategy", "labels", "workers", "utilization_policy", "min_gpu_utilization",
        "time_window", "serving", "first_token_timeout", "secret", "path", "period",
    ]
)  # fmt: skip
VALUES = SCALARS | st.sampled_from(
    [
        "Deployment",
        "UtilizationPolicy",
        "x",
        "auto",
        "all",
        "vllm",
        "simulated",
        "hf:a/b",
        "path:/x",
        "20GiB",
        "5m",
        "none",
    ]
)
MANIFESTS = st.recursive(
    VALUES, lambda inner: st.dictionaries(FIELDS, inner, max_size=8) | st.lists(inner, max_size=3),
    max_leaves=20,
)  # fmt: skip


def check(manifests: list[Manifest]) -> None:
    """The engine accepts each manifest, or refuses it with a message."""
    for manifest in manifests:
        if isinstance(manifest, DeploymentManifest):
            try:
                validate(manifest.spec())
            except SpecError as error:
                refused = str(error)
                assert refused


def problems_of(parse: Any, value: Any) -> list[Any]:
    try:
        with bounded():
            check(parse(value))
    except ManifestError as error:
        return list(error.problems)
    return []


@given(st.lists(MANIFESTS, max_size=3))
@reader_settings()
def test_any_values(values: list[Any]) -> None:
    assert all(problem.message for problem in problems_of(parse_manifest_objects, values))


DEPLOYMENTS = st.fixed_dictionaries(
    {"kind": st.just("Deployment"), "name": st.just("d")},
    optional={
        "model": st.sampled_from(["hf:a/b", "path:/x", "gguf:/x.gguf", "hf:a/b@c"]),
        "engine": st.sampled_from(["auto", "vllm", "sglang", "llama-cpp", "transformers", "custom", "simulated"]),
        "args": st.dictionaries(
            st.text("abcdefg-_", max_size=12) | FIELDS, SCALARS | st.lists(SCALARS, max_size=2), max_size=3
        ),
        "resources": st.dictionaries(FIELDS, VALUES, max_size=2),
        "parallel": st.dictionaries(st.sampled_from(["tp", "pp", "dp"]), st.integers(-1, 9), max_size=3),
        "command": st.lists(st.text(max_size=5), max_size=2),
    },
)


@given(DEPLOYMENTS)
@reader_settings()
def test_engines_accept_or_refuse_any_deployment(value: dict[str, Any]) -> None:
    assert all(problem.message for problem in problems_of(parse_manifest_objects, [value]))


FLAGS = st.sampled_from(
    [
        "max-model-len", "max_num_seqs", "gpu-memory-utilization", "dtype", "kv-cache-dtype", "lora-modules",
        "context-length", "mem-fraction", "ctx-size", "parallel", "n-gpu-layers", "cache-type-k", "lora", "memory",
    ]
)  # fmt: skip
FIGURES = st.sampled_from(["8k", "1.5", "1e9", "9" * 12, "9" * 400, "9" * 5000, "\u0663", "-1", "all", "a=/b"])
SERVED = st.builds(
    lambda engine, args: {
        "kind": "Deployment", "name": "d", "engine": engine, "args": args,
        "model": "gguf:/m.gguf" if engine == "llama-cpp" else "path:/m",
    },
    st.sampled_from(["auto", "vllm", "sglang", "llama-cpp", "transformers"]),
    st.dictionaries(FLAGS, FIGURES | SCALARS | st.lists(FIGURES | SCALARS, max_size=2), min_size=1, max_size=3),
)  # fmt: skip


@given(SERVED)
@reader_settings()
def test_engines_accept_or_refuse_any_flags(value: dict[str, Any]) -> None:
    assert all(problem.message for problem in problems_of(parse_manifest_objects, [value]))


@given(st.text(max_size=200) | st.text(alphabet="ab:-[]{}&*!|>'\"\n #,0", max_size=60))
@reader_settings()
def test_any_text(written: str) -> None:
    assert all(problem.message for problem in problems_of(parse_manifests, written))
