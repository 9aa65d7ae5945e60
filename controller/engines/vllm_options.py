"""vLLM's options, as its parsers name them in versions 0.10 to 0.33 (engine arguments and front end)."""

import json
from typing import Any, Final

from controller.domain.grants import Grant
from controller.engines.options import (
    BY_AGENT,
    BY_ARGS,
    BY_MODEL,
    BY_PARALLEL,
    BY_PLACEMENT,
    BY_PROXY,
    BY_RESOURCES,
    BY_REVISION,
    CODE,
    DRAFT,
    HOST_MEMORY,
    LISTED_FILE,
    PROGRAM,
    READS,
    REMOTE_CODE,
    TEMPLATE,
    WRITES,
    Limit,
    Options,
    Privilege,
)
from schemas.manifest.deployment import DeploymentSpec

# Methods of speculation without a model of their own.
_WITHOUT_DRAFT: Final = frozenset({"ngram", "suffix"})
_BESIDE: Final = "runs on the GPU beside the claimed share; leave it out"


def _without_draft(spec: DeploymentSpec, value: Any) -> bool:
    if DRAFT.allowed(spec, value) or value in _WITHOUT_DRAFT:
        return True
    try:
        given = json.loads(str(value))
    except ValueError:
        return False
    return isinstance(given, dict) and given.get("method") in _WITHOUT_DRAFT and not given.get("model")


def _stays_on_host(_spec: DeploymentSpec, value: Any) -> bool:
    return str(value) == "cpu"


def _no_device(_spec: DeploymentSpec, value: Any) -> bool:
    return "cuda" not in str(value)


VLLM: Final = Options(
    aliases={
        "device-memory-utilization": "gpu-memory-utilization",
        "kv-cache-memory": "kv-cache-memory-bytes",
        "num-speculative-tokens": "spec-tokens",
        "speculative-model": "spec-model",
    },
    short={
        "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
        "pcp": "prefill-context-parallel-size", "dcp": "decode-context-parallel-size", "dpn": "data-parallel-rank",
        "dpr": "data-parallel-start-rank", "dpl": "data-parallel-size-local", "dpa": "data-parallel-address",
        "dpp": "data-parallel-rpc-port", "dpb": "data-parallel-backend", "dph": "data-parallel-hybrid-lb",
        "dpe": "data-parallel-external-lb", "dpm": "data-parallel-multi-port-external-lb", "n": "nnodes",
        "r": "node-rank", "q": "quantization", "ep": "enable-expert-parallel", "asc": "api-server-count",
        "sc": "speculative-config", "dc": "diffusion-config", "cc": "compilation-config", "ac": "attention-config",
    },
    limits={
        "gpu-memory-utilization": Limit(BY_RESOURCES),
        "kv-cache-memory-bytes": Limit(BY_RESOURCES),
        "num-gpu-blocks-override": Limit(BY_RESOURCES),
        "model": Limit(BY_MODEL),
        "tensor-parallel-size": Limit(BY_PARALLEL),
        "pipeline-parallel-size": Limit(BY_PARALLEL),
        "data-parallel-size": Limit(BY_PARALLEL),
        "prefill-context-parallel-size": Limit("takes more GPUs than the placement claims; set parallel instead"),
        "device-ids": Limit(BY_PLACEMENT),
        "data-parallel-rank": Limit(BY_PLACEMENT),
        "data-parallel-start-rank": Limit(BY_PLACEMENT),
        "data-parallel-size-local": Limit(BY_PLACEMENT),
        "data-parallel-address": Limit(BY_PLACEMENT),
        "data-parallel-rpc-port": Limit(BY_PLACEMENT),
        "data-parallel-backend": Limit(BY_PLACEMENT),
        "data-parallel-hybrid-lb": Limit(BY_PLACEMENT),
        "data-parallel-external-lb": Limit(BY_PLACEMENT),
        "data-parallel-multi-port-external-lb": Limit(BY_PLACEMENT),
        "data-parallel-supervisor-port": Limit(BY_PLACEMENT),
        "nnodes": Limit(BY_PLACEMENT),
        "node-rank": Limit(BY_PLACEMENT),
        "enable-elastic-ep": Limit(BY_PLACEMENT),
        "elastic-ep-max-dp-size": Limit(BY_PLACEMENT),
        "distributed-executor-backend": Limit(BY_PLACEMENT),
        "master-addr": Limit(BY_PLACEMENT),
        "master-port": Limit(BY_PLACEMENT),
        "headless": Limit(BY_PLACEMENT),
        "host": Limit(BY_PROXY),
        "port": Limit(BY_AGENT),
        "revision": Limit(BY_REVISION),
        "device": Limit("is set by Gpuward; engine vllm runs on GPUs"),
        "config": Limit(BY_ARGS),
        "uds": Limit("is set by Gpuward; the agent's proxy connects to a port"),
        "grpc": Limit("the agent's proxy speaks HTTP; leave it out"),
        "speculative-config": Limit(DRAFT.fix, _without_draft),
        "spec-model": DRAFT,
        "spec-method": Limit(DRAFT.fix, _without_draft),
        "speculative-draft-tensor-parallel-size": DRAFT,
        # The front end's own processes would open a context on the GPU.
        "mm-processor-device": Limit(_BESIDE, _stays_on_host),
        "mm-ipc-gpu-memory-gb": Limit(_BESIDE),
        "mm-processor-kwargs": Limit("device: cuda " + _BESIDE, _no_device),
        "skip-mm-profiling": Limit("leaves images out of what vLLM accounts for; leave it out"),
        "cpu-offload-gb": HOST_MEMORY,
        "cpu-offload-params": HOST_MEMORY,
        "kv-offloading-size": HOST_MEMORY,
        "swap-space": HOST_MEMORY,
        "offload-backend": HOST_MEMORY,
        "offload-num-in-group": HOST_MEMORY,
    },
    privileged={
        "trust-remote-code": REMOTE_CODE,
        "middleware": CODE,
        "logits-processors": CODE,
        "tool-parser-plugin": CODE,
        "reasoning-parser-plugin": CODE,
        "io-processor-plugin": CODE,
        "worker-cls": CODE,
        "worker-extension-cls": CODE,
        "scheduler-cls": CODE,
        "model-class-overrides": CODE,
        "kv-transfer-config": CODE,
        "ec-transfer-config": CODE,
        "weight-transfer-config": CODE,
        "additional-config": CODE,
        "compilation-config": Privilege(
            Grant.CODE, CODE.why, keys=frozenset({"backend", "inductor_passes", "cache_dir", "debug_dump_path",
                                                  "inductor_compile_config"}),
        ),
        "structured-outputs-config": Privilege(Grant.CODE, CODE.why, keys=frozenset({"reasoning_parser_plugin"})),
        "load-format": Privilege(
            Grant.CODE, "loads weights by a plugin or from pickles",
            harmless=frozenset({"auto", "hf", "safetensors", "fastsafetensors", "dummy", "bitsandbytes", "gguf",
                                "mistral", "sharded_state"}),
        ),
        "log-config-file": CODE,  # Python's logging configuration names classes
        "logging-config": CODE,
        "tool-server": PROGRAM,
        "ray-workers-use-nsight": PROGRAM,
        "allowed-local-media-path": READS,
        "chat-template": TEMPLATE,
        "generation-config": LISTED_FILE,
        "mm-encoder-fp8-scale-path": READS,
        "mm-encoder-fp8-scale-save-path": WRITES,
        "model-loader-extra-config": READS,
        "ssl-keyfile": READS,
        "ssl-certfile": READS,
        "ssl-ca-certs": READS,
        "download-dir": WRITES,
        "profiler-config": WRITES,
    },
    exact=frozenset({"reasoning-parser"}),
)  # fmt: skip
