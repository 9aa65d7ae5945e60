"""vLLM's options, as its parsers name them in versions 0.10 to 0.33 (engine arguments and front end)."""

import json
from contextlib import suppress
from typing import Any, Final

from controller.domain.grants import Grant
from controller.engines.arguments.options import (
    BY_AGENT,
    BY_ARGS,
    BY_MODEL,
    BY_PARALLEL,
    BY_PLACEMENT,
    BY_PROXY,
    BY_RESOURCES,
    BY_REVISION,
    CODE,
    COUNTED,
    DRAFT,
    FOR_EACH_GPU,
    KEYS,
    LISTED_FILE,
    OFFLOADED,
    ONE_PART,
    OWN_PATHS,
    PLAIN_HTTP,
    PRINTS,
    PROGRAM,
    READS,
    REMOTE_CODE,
    TEMPLATE,
    WRITES,
    Limit,
    Options,
    Privilege,
    as_text,
)
from controller.engines.estimates.drafts import WITHOUT_DRAFT, vllm_draft, vllm_speculation
from schemas.manifest.deployment import DeploymentSpec

# With these the server itself chooses how many weights stay in the host's memory.
UNKNOWN_OFFLOAD: Final = frozenset(
    {"cpu-offload-params", "offload-backend", "offload-group-size", "offload-num-in-group", "offload-params"}
)
_BESIDE: Final = "runs on the GPU beside the claimed share; leave it out"


def _reckoned(spec: DeploymentSpec, value: Any) -> bool:
    """Whether speculation needs no further model, or one whose files can be read, or the memory is stated."""
    if DRAFT.allowed(spec, value) or vllm_draft(spec) is not None or as_text(value) in WITHOUT_DRAFT:
        return True
    given = vllm_speculation(spec)
    return given.get("method") in WITHOUT_DRAFT and not given.get("model")


def _stays_on_host(_spec: DeploymentSpec, value: Any) -> bool:
    return str(value) == "cpu"


def _no_device(_spec: DeploymentSpec, value: Any) -> bool:
    text = as_text(value)
    with suppress(ValueError, RecursionError):
        text = str(json.loads(text))  # without escapes
    return "cuda" not in text


VLLM: Final = Options(
    aliases={
        "device-memory-utilization": "gpu-memory-utilization",
        "disable-elastic-ep": "enable-elastic-ep",
    },
    short={
        "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size",
        "pcp": "prefill-context-parallel-size", "dcp": "decode-context-parallel-size", "dpn": "data-parallel-rank",
        "dpr": "data-parallel-start-rank", "dpl": "data-parallel-size-local", "dpa": "data-parallel-address",
        "dpp": "data-parallel-rpc-port", "dpb": "data-parallel-backend", "dph": "data-parallel-hybrid-lb",
        "dpe": "data-parallel-external-lb", "dpm": "data-parallel-multi-port-external-lb", "n": "nnodes",
        "r": "node-rank", "q": "quantization", "ep": "enable-expert-parallel", "asc": "api-server-count",
        "sc": "speculative-config", "dc": "diffusion-config", "cc": "compilation-config", "ac": "attention-config",
        "O": "compilation-config", "h": "help",
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
        "grpc-port": Limit("the agent's proxy speaks HTTP; leave it out"),
        **dict.fromkeys(("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-ciphers",
                         "enable-ssl-refresh"), PLAIN_HTTP),
        "api-key": KEYS,
        "root-path": OWN_PATHS,
        "disable-log-stats": COUNTED,
        "tokens-only": ONE_PART,
        "enable-scale-out": ONE_PART,
        "help": PRINTS,
        "speculative-config": Limit(DRAFT.fix, _reckoned),
        "spec-model": DRAFT,
        "spec-method": Limit(DRAFT.fix, lambda spec, value: DRAFT.allowed(spec, value) or str(value) in WITHOUT_DRAFT),
        # The front end's own processes would open a context on the GPU.
        "mm-processor-device": Limit(_BESIDE, _stays_on_host),
        "mm-ipc-gpu-memory-gb": Limit(_BESIDE),
        "mm-processor-kwargs": Limit("device: cuda " + _BESIDE, _no_device),
        "skip-mm-profiling": Limit("leaves images out of what vLLM accounts for; leave it out"),
        "cpu-offload-gb": FOR_EACH_GPU,
        "swap-space": FOR_EACH_GPU,
        **dict.fromkeys(UNKNOWN_OFFLOAD, OFFLOADED),
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
        "download-dir": WRITES,
        "profiler-config": WRITES,
    },
    exact=frozenset({"reasoning-parser"}),
)  # fmt: skip
