"""Which flags and variables are refused, and which need a grant: a table for each engine."""

from typing import Any

import pytest

from controller.domain.grants import Grant
from controller.engines.base import Launch, RefusedFlagError, SpecError
from controller.engines.privileges import powers
from controller.engines.registry import engine_for, validate
from support.builders.engine_specs import spec

WHOLE = {"resources": {"gpu_memory": "all"}}
HOST = {"resources": {"host_memory": "64GiB"}}
MAY_NOT = {
    "vllm": [
        "device-memory-utilization", "device_memory_utilization", "gpu-memory-utilization", "device-mem", "gpu-memory",
        "kv-cache-memory", "kv-cache-memory-bytes", "num-gpu-blocks-override", "num-gpu-blocks", "device-ids",
        "prefill-context-parallel-size", "prefill-context", "tensor-parallel-size", "tensor-par",
        "pipeline-parallel-size", "data-parallel-size", "data-parallel-rank", "data-parallel-backend",
        "data-parallel-hybrid-lb", "tp", "pp", "dp", "pcp", "dpl", "nnodes", "master-addr", "config", "uds", "grpc",
        "speculative-config", "spec-model", "spec-method", "skip-mm-profiling", "mm-processor-device",
        "mm-ipc-gpu-memory-gb", "cpu-offload-gb", "kv-offloading-size", "swap-space", "enable-elastic-ep",
    ],
    "sglang": [
        "mem-fraction-static", "mem-frac", "base-gpu-id", "base_gpu_id", "gpu-id-step", "gpu-id", "tp", "tp-size",
        "tensor-parallel-size", "dp-size", "data-parallel-size", "pp-size", "pp", "nnodes", "nccl-init-addr",
        "max-total-tokens", "speculative-algorithm", "speculative-draft-model-path", "speculative-draft-model",
        "speculative-draft", "hicache-size", "enable-hicache", "cpu-offload-gb", "use-ray", "model-path", "config",
        "max-ep-size", "grpc-mode",
    ],
    "llama-cpp": [
        "device", "dev", "main-gpu", "mg", "tensor-split", "ts", "rpc", "ngl", "c", "np", "md", "model-draft",
        "spec-draft-model", "hf-repo-draft", "hf-repo", "models-dir", "mmproj-url", "fit", "fit-ctx", "no-kv-offload",
        "cpu-moe", "n-cpu-moe", "override-tensor", "ot", "gpt-oss-20b-default", "device-draft", "lora-scaled",
    ],
    "transformers": ["continuous-batching", "cb-max-memory-percent", "cb-num-blocks", "force-model", "host"],
}  # fmt: skip


@pytest.mark.parametrize(("engine", "name"), [(engine, one) for engine, names in MAY_NOT.items() for one in names])
def test_no_spelling_of_these_options_passes(engine: str, name: str) -> None:
    with pytest.raises(SpecError, match=f"^args.{name}: "):
        validate(spec(engine, args={name: 0.95}))


@pytest.mark.parametrize(
    ("engine", "fields"),
    [
        ("vllm", {"args": {"speculative-config": '{"method":"eagle","model":"a/b"}'}, **WHOLE}),
        ("vllm", {"args": {"speculative-config": '{"method":"ngram","num_speculative_tokens":4}'}}),
        ("vllm", {"args": {"cpu-offload-gb": 8}, **HOST}),
        ("vllm", {"args": {"reasoning-parser": "qwen3", "enable-lora": True, "max-loras": 2, "seed": -1}}),
        ("vllm", {"args": {"mm-processor-kwargs": '{"max_pixels":1}', "block-size": 32, "quantization": "fp8"}}),
        ("sglang", {"args": {"speculative-algorithm": "NGRAM", "log-requests": True, "enable-dp-attention": True}}),
        ("sglang", {"args": {"hicache-size": 8}, **HOST}),
        ("llama-cpp", {"args": {"override-tensor": "exps=CPU,attn=CPU"}, **HOST}),
        ("llama-cpp", {"args": {"kv-offload": True, "api-key": "x", "grammar": "root", "gpu-layers": 9, "lora": "/a"}}),
        ("transformers", {"args": {"continuous-batching": True}, **WHOLE}),
        ("transformers", {"args": {"quantization": "bnb-4bit", "dtype": "float16"}}),
    ],
)  # fmt: skip
def test_these_pass(engine: str, fields: dict[str, Any]) -> None:
    validate(spec(engine, **fields))
    assert list(powers(spec(engine, **fields))) == []


@pytest.mark.parametrize(
    ("engine", "fields", "words"),
    [
        ("vllm", {"args": {"speculative-config": '{"method":"ngram","model":"a/b"}'}}, "args.spec.*gpu_memory: all"),
        ("vllm", {"args": {"mm-processor-kwargs": '{"device":"cuda"}'}}, "args.mm-processor-kwargs: device: cuda"),
        ("vllm", {"args": {"served-model-name": ["a", "--device-memory-utilization=1"]}}, "args.served.*other flag"),
        ("llama-cpp", {"args": {"n-gpu-layers": 1, "gpu-layers": 99}}, "args.gpu-layers: is the same .* n-gpu-layers;"),
        ("vllm", {"args": {"max-model-len": 9, "max_model_len": 99}}, "args.max_model_len: is the same option as"),
        ("vllm", {"args": {"language-model-only": True, "no_language_model_only": True}}, "args.no_language.*as lang"),
        ("sglang", {"args": {"enable-multimodal": False, "enable_multimodal": True}}, "args.enable_multimodal: is the"),
        ("llama-cpp", {"args": {"no-kv-offload": True, "kv-offload": True}, **HOST}, "args.kv-offload: is the same"),
        ("transformers", {"args": {"dtype": "float16", "torch_dtype": "float32"}}, "args.torch_dtype: is the same"),
        ("vllm", {"args": {"seed": "-tp=2"}}, "args.seed: .*another flag"),
        ("vllm", {"args": {"served-model-name": "a\x1b[2J"}}, "args.served-model-name: contains control"),
        ("vllm", {"args": {"seed=1 --x": 1}}, "args.seed=1 --x: not a valid flag"),
        ("vllm", {"args": {"seed\n": 1}}, "args.seed\n: not a valid flag"),
        ("vllm", {"args": {"limit-mm-per-prompt": [{"image": 0}]}}, "args.limit-mm.*JSON text: '.{\"image\":0}.'"),
        ("vllm", {"args": {"lora-modules": ["a=/x/../y"]}}, "args.lora-modules: contains '..'"),
        ("vllm", {"args": {"lora-modules": ["a=--x/y"]}}, "args.lora-modules: a part of it begins with '-'"),
        ("sglang", {"args": {"enable-dp-attention": True}, "parallel": {"dp": 2}}, "args.enable-dp-attention: "),
        ("llama-cpp", {"args": {"kv-offload": False}}, "args.kv-offload: takes memory of the host"),
        ("llama-cpp", {"args": {"override-tensor": "exps=CUDA1"}, **HOST}, "args.override-tensor: "),
        ("vllm", {"model": "hf:--x/y"}, "model: a part of it begins with '-'"),
        ("vllm", {"model": "hf:a/--y"}, "model: a part of it begins with '-'"),
        ("vllm", {"model": "hf:a/b@-main"}, "model: a part of it begins with '-'"),
        ("vllm", {"model": "hf:../b"}, "model: contains '..'"),
        ("vllm", {"model": "hf:a/b@refs/../x"}, "model: contains '..'"),
        ("vllm", {"model": "path:/m/../../etc"}, "model: contains '..'"),
        ("vllm", {"model": "path:/m\x07"}, "model: contains control characters"),
        ("llama-cpp", {"model": "gguf:/../m.gguf"}, "model: contains '..'"),
        ("llama-cpp", {"env": {"LLAMA_ARG_CTX_SIZE": "1"}}, "env.LLAMA_ARG_CTX_SIZE: .*under args"),
        ("vllm", {"env": {"VLLM_DP_SIZE": "4"}}, "env.VLLM_DP_SIZE: .*parallel"),
        ("vllm", {"env": {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}}, "env.CUDA_DEVICE_ORDER: chooses GPUs"),
        ("vllm", {"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, "env.NVIDIA_VISIBLE_DEVICES: chooses GPUs"),
    ],
)  # fmt: skip
def test_refusals(engine: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match="^" + words):
        validate(spec(engine, **fields))


def test_a_manifest_says_how_to_write_a_mapping() -> None:
    with pytest.raises(ValueError, match=r"""write its JSON text: '\{"image":0\}'"""):
        spec("vllm", args={"limit-mm-per-prompt": {"image": 0}})


@pytest.mark.parametrize(
    ("engine", "args", "grants"),
    [
        ("vllm", {"trust-remote-code": True}, ["code"]),
        ("vllm", {"trust_remote_code": "yes"}, ["code"]),
        ("vllm", {"trust-remote-code": False}, []),
        ("vllm", {"no-trust-remote-code": True}, []),
        ("vllm", {"middleware": ["a.b"], "allowed-local-media-path": "/"}, ["code", "host_files"]),
        ("vllm", {"logits-processors": "x", "worker-cls": "x", "tool-parser-plugin": "/x"}, ["code"] * 3),
        ("vllm", {"load-format": "dummy"}, []),
        ("vllm", {"load-format": "my-plugin"}, ["code"]),
        ("vllm", {"compilation-config": '{"cudagraph_mode":"NONE"}'}, []),
        ("vllm", {"compilation-config": '{"a":{"inductor_passes":{}}}'}, ["code"]),
        ("vllm", {"chat-template": "{% for m in messages %}/{% endfor %}"}, []),
        ("vllm", {"chat-template": "/etc/shadow"}, ["host_files"]),
        ("sglang", {"enable-custom-logit-processor": True, "sidecar": "x"}, ["code", "code"]),
        ("sglang", {"chat-template": "chatml"}, []),
        ("sglang", {"delete-ckpt-after-loading": True}, ["host_files"]),
        ("llama-cpp", {"log-file": "/x", "slot-save-path": "/x", "chat-template-file": "/x"}, ["host_files"] * 3),
        ("llama-cpp", {"tools": "all"}, ["code"]),
        ("transformers", {"trust-remote-code": True, "decision-config": "/x"}, ["code", "host_files"]),
        ("auto", {"trust-remote-code": True}, ["code"]),
    ],
)
def test_flags_that_need_a_grant(engine: str, args: dict[str, Any], grants: list[str]) -> None:
    wanted = spec(engine, args=args)
    validate(wanted)
    assert [str(power.grant) for power in powers(wanted)] == grants


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        *((one, True) for one in (
            "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "BASH_ENV", "ENV", "PATH",
            "GCONV_PATH", "NODE_OPTIONS", "VLLM_PLUGINS", "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "https_proxy",
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "VLLM_LOGGING_CONFIG_PATH", "CUDA_INJECTION64_PATH", "HOME",
            "SGLANG_EXTERNAL_MODEL_PACKAGE", "HF_TOKEN_PATH", "NCCL_NET_PLUGIN", "TORCHINDUCTOR_CACHE_DIR", "PERL5OPT",
            "NVSHMEM_BOOTSTRAP_PLUGIN", "OCL_ICD_FILENAMES", "CXXFLAGS", "MAKEFLAGS", "TORCH_NVCC_FLAGS", "NVCC",
            "CPATH", "FLASHINFER_NVCC", "CCACHE_PREFIX", "TORCH_TRACE", "TORCH_LOGS_OUT", "CUBLAS_LOGDEST_DBG",
            "CMAKE_ARGS",
        )),
        *((one, False) for one in (
            "PYTHONUNBUFFERED", "PYTHONHASHSEED", "HF_TOKEN", "HF_HUB_OFFLINE", "NCCL_DEBUG", "OMP_NUM_THREADS",
            "VLLM_LOGGING_LEVEL", "VLLM_ATTENTION_BACKEND", "PYTORCH_CUDA_ALLOC_CONF", "TOKENIZERS_PARALLELISM",
        )),
    ],
)  # fmt: skip
def test_variables_that_need_a_grant(name: str, needs: bool) -> None:
    found = [power.grant for power in powers(spec("vllm", env={name: "1"}))]
    assert found == ([Grant.ENVIRONMENT] if needs else [])


@pytest.mark.parametrize("engine", ["vllm", "auto"])
def test_a_spec_that_an_earlier_version_stored_goes_on_running(engine: str) -> None:
    stored = spec(engine, args={"num-gpu-blocks-override": 9})
    with pytest.raises(RefusedFlagError):
        validate(stored)
    assert "--num-gpu-blocks-override" in engine_for(stored).process(stored, Launch(gpu_count=1)).argv
    assert engine_for(stored).compatibility(stored).engine == "vllm"
