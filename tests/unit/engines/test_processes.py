"""Each engine: its command line, its need, its compatibility."""

from typing import Any

import pytest

from controller.domain.model_facts import ModelFacts, facts_to_json
from controller.engines.base import EngineProcess, Launch, SpecError
from controller.engines.registry import engine_for
from controller.engines.servers.transformers import GPU_RUNTIME_MIB, HOST_RUNTIME_MIB
from schemas.manifest.deployment import DeploymentSpec
from schemas.wire import ProbeOrder, SimulatedLoad

READ = facts_to_json(
    ModelFacts("safetensors", 1503300328, {"BF16": 1503300328}, heads=16, kv_heads=8, vocab=9, dtype="bfloat16")
)


def spec(**fields: Any) -> DeploymentSpec:
    return DeploymentSpec.model_validate(fields)


def process(gpus: int = 0, **fields: Any) -> EngineProcess:
    wanted = spec(**fields)
    return engine_for(wanted).process(wanted, Launch(gpu_count=gpus))


def test_a_command_runs_as_it_is_written() -> None:
    started = process(
        2,
        model="path:/m",
        command=["serve", "{model}", "--tp={gpu_count}", "--port={port}", "{other}", "$HOME; ls"][:4],
    )
    assert started.argv == ("serve", "/m", "--tp=2", "--port={port}")
    assert started.needs_port
    assert started.probe is None
    assert started.request_model is None


def test_a_task_needs_no_port() -> None:
    started = process(command=["python", "-c", "print('$HOME; ls')"], restart="never")
    assert started.argv == ("python", "-c", "print('$HOME; ls')")
    assert not started.needs_port


def test_the_users_probe_replaces_the_engines() -> None:
    probe = {"path": "/live", "period": "1s", "timeout": 2, "failures": 5}
    expected = ProbeOrder(path="/live", period_s=1, timeout_s=2, failures=5)
    assert process(command=["x", "{port}"], probe=probe).probe == expected
    assert process(engine="simulated", probe=probe).probe == expected
    default = process(engine="simulated").probe
    assert default is not None
    assert default.path == "/health"


def test_the_simulated_engine_is_a_process_of_the_agents_python() -> None:
    args = {
        "load_seconds": "1500ms", "exit_after": 3, "exit_code": 7, "ignore_sigterm": True,
        "utilization": [[30, 90], ["1m", 0]], "memory": "10GiB", "analysis_seconds": 2,
    }  # fmt: skip
    started = process(4, engine="simulated", model="hf:org/name", args=args)
    assert " ".join(started.argv) == (
        "{simulated_engine} --port {port} --model org/name --load-seconds 1.5 --exit-after 3"
        " --exit-code 7 --ignore-sigterm"
    )
    assert started.needs_port
    assert started.simulated_load == SimulatedLoad(utilization=((30, 90), (60, 0)), memory_mib=2560)


def test_simulated_defaults() -> None:
    started = process(1, engine="simulated", args={"utilization": 40})
    assert started.argv[-2:] == ("--model", "simulated")
    assert started.simulated_load == SimulatedLoad(utilization=((0, 40),), memory_mib=None)


def test_transformers_serve_with_flags() -> None:
    args = {"device": "cpu", "compile": True, "trust_remote_code": False, "x": [1, "b"], "default_seed": None}
    started = process(engine="transformers", model="path:/models/tiny", args=args)
    assert started.argv == (
        "transformers", "serve", "/models/tiny", "--host", "127.0.0.1", "--port", "{port}",
        "--device", "cpu", "--compile", "--no-trust-remote-code", "--x", "1", "--x", "b",
    )  # fmt: skip
    assert started.env == {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    assert started.request_model == "/models/tiny"
    hub = process(engine="transformers", model="hf:org/name@v1.0")
    assert (hub.argv[2], hub.request_model) == ("org/name@v1.0", "org/name@v1.0")
    assert "HF_HUB_OFFLINE" not in hub.env


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ({"model": "path:/m"}, {"path": "/m"}),
        ({"model": "hf:org/name"}, {"repo": "org/name", "revision": "main"}),
        ({"model": "hf:org/name@r/1"}, {"repo": "org/name", "revision": "r/1"}),
        ({"model": "path:/m", "resources": {"gpu_memory": "4GiB"}}, {"path": "/m"}),
        ({"model": "path:/m", "engine": "transformers", "resources": {"gpu_memory": "all"}}, {"path": "/m"}),
        ({"model": "path:/m", "resources": {"gpu_memory": "all"}}, {"path": "/m"}),
        ({"model": "gguf:/m.gguf"}, {"gguf": "/m.gguf"}),
        ({"model": "path:/m", "args": {"device": "cpu"}}, {"path": "/m"}),
        ({"model": "path:/m", "args": {"device": "cpu"}, "resources": {"host_memory": "4GiB"}}, None),
        ({"engine": "simulated", "args": {"memory": "4GiB"}}, None),
        (
            {"engine": "simulated", "args": {"memory": "4GiB", "analysis_seconds": 2}},
            {"seconds": 2.0, "memory_mib": 4096},
        ),
        ({"command": ["x"]}, None),
    ],
)
def test_the_payload_of_the_analysis(fields: dict[str, Any], payload: dict[str, Any] | None) -> None:
    wanted = spec(**fields)
    analysis = engine_for(wanted).analysis(wanted)
    assert (None if analysis is None else dict(analysis.payload)) == payload


def test_the_need_of_transformers_is_tensors_and_fixed_overhead() -> None:
    wanted = spec(engine="transformers", model="path:/m")
    need = engine_for(wanted).need(wanted, READ)
    assert need.parts == {"tensors": 1434, "working": 287, "runtime": GPU_RUNTIME_MIB}
    assert need.memory_mib == sum(need.parts.values())
    assert need.memory_mib == pytest.approx(3951444041 / 2**20, abs=2)  # the case's figure for this model
    assert need.heads is None  # layers are spread, heads are not split
    assert need.host_memory_mib == HOST_RUNTIME_MIB


def test_on_cpu_the_need_is_the_hosts() -> None:
    wanted = spec(engine="transformers", model="path:/m", args={"device": "cpu"})
    engine = engine_for(wanted)
    need = engine.need(wanted, READ)
    assert (need.memory_mib, need.host_memory_mib) == (0, 1434 + 287 + HOST_RUNTIME_MIB)
    assert engine.gpu_counts(wanted) == (0,)
    assert not engine.compatibility(wanted).min_driver


def test_another_dtype_is_another_need() -> None:
    wanted = spec(engine="transformers", model="path:/m", args={"dtype": "float32"})
    assert engine_for(wanted).need(wanted, READ).parts["tensors"] == -(-2 * 1503300328 // 2**20)


def test_retired_args_of_a_stored_spec_have_no_effect() -> None:
    args = {
        "wait_seconds": "1s", "die_after_tokens": 0, "refuse": 503, "slots": 4, "kv_tokens": 5_000_000, "silent": True,
        "usage": False, "without": ["/v1/responses"], "token_seconds": 1, "hang_after": 2, "heads": 12, "kv_heads": 4,
        "vocab": 1000, "vision_heads": "many",
    }  # fmt: skip
    wanted = spec(engine="simulated", args=args)
    engine_for(wanted).validate(wanted)
    assert wanted.retired_args == list(args)
    assert process(engine="simulated", args=args) == process(engine="simulated")
    assert engine_for(wanted).need(wanted, None) == engine_for(wanted).need(spec(engine="simulated"), None)
    assert spec(engine="simulated", args={"memory": "1GiB"}).retired_args == []


def test_an_engine_that_an_earlier_version_started_may_take_one_name_alone() -> None:
    started = process(engine="simulated", args={"served_model_name": "org/name"})
    assert started.request_model == "org/name"
    assert "org/name" not in started.argv
    assert process(engine="simulated").request_model is None


@pytest.mark.parametrize(
    "args",
    [{"load_seconds": "2h"}, {"exit_code": 256}, {"exit_after": -1}, {"ignore_sigterm": 1}, {"utilization": 101},
     {"memory": "x"}, {"need_per_gpu": 0.5}, {"loading_seconds": 1}],
)  # fmt: skip
def test_invalid_args_of_the_simulated_engine_are_named(args: dict[str, Any]) -> None:
    wanted = spec(engine="simulated", args=args)
    with pytest.raises(SpecError, match=f"args.{next(iter(args))}: "):
        engine_for(wanted).validate(wanted)


def test_the_need_of_the_simulated_engine() -> None:
    wanted = spec(engine="simulated", args={"memory": "4GiB"})
    engine = engine_for(wanted)
    assert engine.need(wanted, None).memory_mib == 4096
    assert engine.need(wanted, {"memory_mib": 5000}).memory_mib == 5000
    assert engine.need(spec(engine="simulated"), None).memory_mib is None


def test_the_gauges_of_requests() -> None:
    """A command may start any server; only whether it serves at all is known."""
    assert "vllm:num_requests_running" in process(command=["x", "{port}"]).metrics.request_gauges
    assert process(command=["x"], restart="never").metrics.request_gauges == ()
    assert process(engine="simulated").metrics.request_gauges == (
        "simulated_requests_running",
        "simulated_requests_waiting",
    )
    assert (
        process(engine="transformers", model="path:/models/tiny").metrics.request_gauges == ()
    )  # transformers serve has no metrics
