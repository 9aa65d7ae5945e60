"""Which flags and variables are refused, and which need a grant: a table for each engine."""

from contextlib import suppress
from typing import Any

import pytest

from controller.domain.access.grants import Grant
from controller.engines.arguments.privileges import powers
from controller.engines.base import Launch, RefusedFlagError, SpecError
from controller.engines.registry import engine_for, validate
from schemas.manifest.deployment import DeploymentSpec
from support.builders.engine_specs import spec

WHOLE = {"resources": {"gpu_memory": "all"}}
HOST = {"resources": {"host_memory": "64GiB"}}
BOTH = {"resources": {"host_memory": "64GiB", "gpu_memory": "20GiB"}}
MAY_NOT = {
    "vllm": [
        "device-memory-utilization", "device_memory_utilization", "gpu-memory-utilization", "device-mem", "gpu-memory",
        "kv-cache-memory", "kv-cache-memory-bytes", "num-gpu-blocks-override", "num-gpu-blocks", "device-ids",
        "prefill-context-parallel-size", "prefill-context", "tensor-parallel-size", "tensor-par",
        "pipeline-parallel-size", "data-parallel-size", "data-parallel-rank", "data-parallel-backend",
        "data-parallel-hybrid-lb", "tp", "pp", "dp", "pcp", "dpl", "nnodes", "master-addr", "config", "uds", "grpc",
        "speculative-config", "spec-model", "spec-method", "skip-mm-profiling", "mm-processor-device",
        "mm-ipc-gpu-memory-gb", "cpu-offload-gb", "swap-space", "offload-group-size", "enable-elastic-ep",
        "ssl-keyfile", "ssl-certfile", "ssl-ciphers", "api-key", "root-path", "grpc-port", "disable-log-stats", "O",
        "tokens-only", "disable-elastic-ep", "help",
    ],
    "sglang": [
        "mem-fraction-static", "mem-frac", "base-gpu-id", "base_gpu_id", "gpu-id-step", "gpu-id", "tp", "tp-size",
        "tensor-parallel-size", "dp-size", "data-parallel-size", "pp-size", "pp", "nnodes", "nccl-init-addr",
        "max-total-tokens", "speculative-algorithm", "speculative-draft-model-path", "speculative-draft-model",
        "speculative-draft", "hicache-size", "enable-hicache", "cpu-offload-gb", "use-ray", "model-path", "config",
        "max-ep-size", "grpc-mode", "api-key", "admin-api-key", "ssl-keyfile", "ssl-cert", "fastapi-root-path",
        "disaggregation-mode", "model-type", "smg-http-sidecar-port", "weight-cache-mode",
        "mm-feature-transport", "enable-paged-experts", "grpc-http-sidecar-port", "h",
    ],
    "llama-cpp": [
        "device", "dev", "main-gpu", "mg", "tensor-split", "ts", "rpc", "ngl", "c", "np", "md", "model-draft",
        "spec-draft-model", "hf-repo-draft", "hf-repo", "models-dir", "mmproj-url", "fit", "fit-ctx", "no-kv-offload",
        "cpu-moe", "n-cpu-moe", "override-tensor", "ot", "gpt-oss-20b-default", "device-draft", "lora-scaled",
        "api-key", "api-key-file", "ssl-key-file", "api-prefix", "reuse-port", "mmproj-device", "mmdev", "spec-type",
        "override-kv", "kv-unified-per-slot", "spec-draft-ncmoe", "version", "help", "list-devices",
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
        ("llama-cpp", {"args": {"spec-type": "ngram-mod,ngram-simple"}}),
        ("llama-cpp", {"args": {"n-cpu-moe": 12, "kv-offload": False, "override-tensor": r"blk\.\d+\.ffn_.*=CPU"}}),
        ("llama-cpp", {"args": {"override-tensor": "[[:digit:]]b=CPU"}, **BOTH}),
        ("llama-cpp", {"args": {"model-draft": "/d.gguf", "spec-type": "draft-simple,ngram-mod"}}),
        ("llama-cpp", {"args": {"spec-draft-hf": "a/b"}, "resources": {"gpu_memory": "20GiB"}}),
        ("vllm", {"args": {"speculative-config": {"method": "eagle", "model": "a/b", "revision": "v1"}}}),
        ("vllm", {"args": {"speculative-config": {"method": "mtp"}}, "resources": {"gpu_memory": "20GiB"}}),
        ("vllm", {"args": {"cpu-offload-gb": 4, "swap-space": 2}, "resources": {"gpus": 2}}),
        ("vllm", {"args": {"cpu-offload-params": "experts", "cpu-offload-gb": 4}, **BOTH}),
        ("vllm", {"args": {"kv-offloading-size": 8}}),
        ("sglang", {"args": {"enable-hierarchical-cache": True, "hicache-size": 8}, "resources": {"gpus": 1}}),
        ("sglang", {"args": {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/d"}}),
        ("llama-cpp", {"args": {"embedding": True, "temp": 0.5, "rerank": True, "kv-unified": True, "cache-ram": 9}}),
        ("sglang", {"args": {"mm-feature-transport": "cpu"}}),
        ("vllm", {"args": {"no-skip-mm-profiling": True, "disable-cascade-attn": False}}),
        ("llama-cpp", {"args": {"kv-offload": True, "grammar": "root", "gpu-layers": 9, "lora": "/a"}}),
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
        ("vllm", {"args": {"speculative-config": '{"method":"ngram","model":"a/b"}'}}, "args.spec.*gpu_memory"),
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
        ("vllm", {"args": {"a.b": 1, "a.b.c": 2}}, "args.a.b.c: b has a value already"),
        ("vllm", {"args": {"a.b": 1, "a": {"c": 2}}}, "args.a: is the same option as a.b"),
        ("vllm", {"args": {"speculative-config.model": "ngram"}}, "args.speculative-config.model: a draft"),
        ("vllm", {"args": {"speculative-config": {"method": "ngram", "model": "a/b"}}}, "args.spec.*: a draft"),
        ("vllm", {"args": {"mm-processor-kwargs": {"device": "cuda"}}}, "args.mm-processor-kwargs: device: cuda"),
        ("vllm", {"args": {"mm-processor-kwargs": '{"device":"\\u0063uda"}'}}, "args.mm-proc.*: device: cuda"),
        ("vllm", {"args": {"lora-modules": [{"name": "a", "path": "/x=y"}]}}, "args.lora-modules: write each as name="),
        ("vllm", {"args": {"frobnicate": False}}, "args.frobnicate: is not a switch.*no-frobnicate: true"),
        ("vllm", {"args": {"gpu-memory-utilization.x": 1}}, "args.gpu-memory-utilization.x: is set by Gpuward"),
        ("vllm", {"args": {"hf-overrides": {"a": float("inf")}}}, "args.hf-overrides: holds a number"),
        ("vllm", {"args": {"hf-overrides": {"a": "x\x1b[2J"}}}, "args.hf-overrides: contains control"),
        ("sglang", {"args": {"max-model-len": "auto", "context-length": "auto"}}, "args.context-length: must"),
        ("llama-cpp", {"args": {"chat-template-kwargs.x": 1}}, "args.chat-template-kwargs.x: not a valid flag"),
        ("vllm", {"args": {"lora-modules": ["a=/x/../y"]}}, "args.lora-modules: contains '..'"),
        ("vllm", {"args": {"lora-modules": ["a=--x/y"]}}, "args.lora-modules: a part of it begins with '-'"),
        ("sglang", {"args": {"enable-dp-attention": True}, "parallel": {"dp": 2}}, "args.enable-dp-attention: "),
        ("vllm", {"args": {"no-skip-mm-profiling": False}}, "args.no-skip.*write skip-mm-profiling: true"),
        ("vllm", {"args": {"no_trust_remote_code": False}}, "args.no_trust_remote_code: .*trust-remote-code: true"),
        ("vllm", {"args": {"disable-scale-out": False}}, "args.disable-scale-out: serves only a part"),
        ("vllm", {"args": {"api-key": "x"}}, "args.api-key: keys are checked by the gateway"),
        ("vllm", {"env": {"VLLM_API_KEY": "x"}}, "env.VLLM_API_KEY: .*gateway"),
        ("vllm", {"env": {"VLLM_PORT": "1"}}, "env.VLLM_PORT: .*agent"),
        ("vllm", {"env": {"VLLM_PP_LAYER_PARTITION": "1,31"}}, "env.VLLM_PP_LAYER_PARTITION: .*unevenly"),
        ("llama-cpp", {"args": {"spec-type": "ngram-mod,draft-mtp"}}, "args.spec-type: a draft model"),
        ("llama-cpp", {"args": {"kv-offload": "no"}}, "args.kv-offload: must be true or false"),
        ("llama-cpp", {"args": {"n-cpu-moe": "all"}}, "args.n-cpu-moe: must be a whole number of layers"),
        ("llama-cpp", {"args": {"override-tensor": "exps"}}, "args.override-tensor: write each rule as"),
        ("llama-cpp", {"args": {"override-tensor": "[[:digit:]]b=CPU"}, **HOST}, "args.override-tensor: .*gpu_memory"),
        ("llama-cpp", {"args": {"spec-draft-hf": "a/b"}}, "args.spec-draft-hf: a draft model"),
        ("llama-cpp", {"args": {"model-draft": "/a/../b.gguf"}}, "args.model-draft: contains '..'"),
        ("vllm", {"args": {"cpu-offload-gb": 4}}, "args.cpu-offload-gb: .*state resources.gpus, or resources.host"),
        ("vllm", {"args": {"cpu-offload-gb": "4GiB"}, **HOST}, "args.cpu-offload-gb: must be a number"),
        ("vllm", {"args": {"cpu-offload-params": "experts"}, **HOST}, "args.cpu-offload-params: .*gpu_memory and"),
        ("vllm", {"args": {"speculative-config": {"method": "mtp"}}}, "args.speculative-config: a draft"),
        ("vllm", {"args": {"speculative-config.model": "--x/y"}}, "args.speculative-config.model: a part of it begins"),
        ("sglang", {"args": {"enable-hierarchical-cache": True}}, "args.enable-hier.*a multiple of each GPU's cache"),
        ("sglang", {"args": {"enable-hicache": True}, "resources": {"gpus": 1, "gpu_memory": "all"}},
         "args.*hicache-size"),
        ("sglang", {"args": {"speculative-algorithm": "EAGLE3"}}, "args.speculative-algorithm: a draft"),
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


@pytest.mark.parametrize(
    ("engine", "args", "written"),
    [
        ("vllm", {"limit-mm-per-prompt": {"image": 0}}, ["--limit-mm-per-prompt", '{"image":0}']),
        ("vllm", {"compilation-config.mode": 3, "compilation_config.pass_config.fuse": True, "seed": 1},
         ["--compilation-config", '{"mode":3,"pass_config":{"fuse":true}}', "--seed", "1"]),
        ("vllm", {"speculative-config": {"method": "ngram", "num_speculative_tokens": 4}},
         ["--speculative-config", '{"method":"ngram","num_speculative_tokens":4}']),
        ("vllm", {"speculative-config.method": "ngram"}, ["--speculative-config", '{"method":"ngram"}']),
        ("vllm", {"allowed-origins": ["a", "b"]}, ["--allowed-origins", '["a","b"]']),
        ("vllm", {"served-model-name": ["a", "b"]}, ["--served-model-name", "a", "b"]),
        ("vllm", {"enforce-eager": False, "aggregate-engine-logging": False}, ["--no-enforce-eager"]),
        ("vllm", {"max-model-len": "auto"}, ["--max-model-len", "auto"]),
        ("sglang", {"json-model-override-args": {"a": [1]}, "forward-hooks": [{"name": "x"}]},
         ["--json-model-override-args", '{"a":[1]}', "--forward-hooks", '[{"name":"x"}]']),
        ("sglang", {"enable-tf32-matmul": False, "log-requests": False}, ["--no-enable-tf32-matmul"]),
        ("llama-cpp", {"chat-template-kwargs": {"enable_thinking": False}},
         ["--chat-template-kwargs", '{"enable_thinking":false}']),
        ("llama-cpp", {"cont-batching": False, "swa-full": False}, ["--no-cont-batching"]),
    ],
)  # fmt: skip
def test_args_as_people_write_them(engine: str, args: dict[str, Any], written: list[str]) -> None:
    wanted = spec(engine, args=args)
    validate(wanted)
    argv = engine_for(wanted).process(wanted, Launch(gpu_count=1, context=4096, sequences=1)).argv
    assert list(argv[-len(written) :]) == written
    assert argv.count("--max-model-len") <= 1


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
        ("vllm", {"compilation-config.backend": "x.y"}, ["code"]),
        ("vllm", {"compilation-config": {"mode": 3}}, []),
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


@pytest.mark.parametrize("arg", ["speculative-config", "compilation-config", "limit-mm-per-prompt"])
@pytest.mark.parametrize("value", ["[" * 5000 + "]" * 5000, '{"a":' * 5000 + "1" + "}" * 5000])
def test_deeply_nested_json_is_judged_as_plain_text(arg: str, value: str) -> None:
    nested = DeploymentSpec.model_validate({"engine": "vllm", "model": "hf:org/m", "args": {arg: value}})
    list(powers(nested))
    engine = engine_for(nested)
    with suppress(SpecError):
        engine.validate(nested)
        engine.analysis(nested)
