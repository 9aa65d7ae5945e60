"""vLLM's options, as its parsers name them in versions 0.10 to 0.33 (engine arguments and front end)."""

import json
from contextlib import suppress
from typing import Any, Final

from controller.domain.access.grants import Grant
from controller.engines.arguments.options import Limit, Needs, Options, Privilege, Refused, as_text, each
from controller.engines.estimates.drafts import WITHOUT_DRAFT, vllm_draft, vllm_speculation
from schemas.manifest.deployment import DeploymentSpec

# With these flags the server itself chooses the weights that stay in the host's memory.
UNKNOWN_OFFLOAD: Final = frozenset(
    {"cpu-offload-params", "offload-backend", "offload-group-size", "offload-num-in-group", "offload-params"}
)
_BESIDE: Final = "runs on the GPU beside the claimed share; leave it out"


def _reckoned(spec: DeploymentSpec, value: Any) -> bool:
    """Whether speculation needs no further model, or one whose files can be read, or the memory is stated."""
    if Refused.DRAFT.allowed(spec, value) or vllm_draft(spec) is not None or as_text(value) in WITHOUT_DRAFT:
        return True
    given = vllm_speculation(spec)
    return given.get("method") in WITHOUT_DRAFT and not given.get("model")


def _drafts_alone(spec: DeploymentSpec, value: Any) -> bool:
    return Refused.DRAFT.allowed(spec, value) or str(value) in WITHOUT_DRAFT


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
        **each(Refused.RESOURCES, "gpu-memory-utilization", "kv-cache-memory-bytes", "num-gpu-blocks-override"),
        **each(Refused.PARALLEL, "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
        **each(Refused.PLACEMENT, "device-ids", "data-parallel-rank", "data-parallel-start-rank",
               "data-parallel-size-local", "data-parallel-address", "data-parallel-rpc-port", "data-parallel-backend",
               "data-parallel-hybrid-lb", "data-parallel-external-lb", "data-parallel-multi-port-external-lb",
               "data-parallel-supervisor-port", "nnodes", "node-rank", "enable-elastic-ep", "elastic-ep-max-dp-size",
               "distributed-executor-backend", "master-addr", "master-port", "headless"),
        **each(Limit("the agent's proxy speaks HTTP; leave it out"), "grpc", "grpc-port"),
        **each(Refused.ONE_PART, "tokens-only", "enable-scale-out"),
        **each(Refused.FOR_EACH_GPU, "cpu-offload-gb", "swap-space"),
        "model": Refused.MODEL,
        "prefill-context-parallel-size": Limit("takes more GPUs than the placement claims; set parallel instead"),
        "host": Refused.PROXY,
        "port": Refused.AGENT,
        "revision": Refused.REVISION,
        "device": Limit("is set by Gpuward; engine vllm runs on GPUs"),
        "config": Refused.ARGS,
        "uds": Limit("is set by Gpuward; the agent's proxy connects to a port"),
        **each(Refused.PLAIN_HTTP, "ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-ciphers",
               "enable-ssl-refresh"),
        "api-key": Refused.KEYS,
        "root-path": Refused.OWN_PATHS,
        "disable-log-stats": Refused.COUNTED,
        "help": Refused.PRINTS,
        "speculative-config": Limit(Refused.DRAFT.fix, _reckoned),
        "spec-model": Refused.DRAFT,
        "spec-method": Limit(Refused.DRAFT.fix, _drafts_alone),
        # The front end's own processes would open a context on the GPU.
        "mm-processor-device": Limit(_BESIDE, _stays_on_host),
        "mm-ipc-gpu-memory-gb": Limit(_BESIDE),
        "mm-processor-kwargs": Limit("device: cuda " + _BESIDE, _no_device),
        "skip-mm-profiling": Limit("leaves images out of what vLLM accounts for; leave it out"),
        **each(Refused.OFFLOADED, *UNKNOWN_OFFLOAD),
    },
    privileged={
        # Python's logging configuration names classes.
        **each(Needs.CODE, "middleware", "logits-processors", "tool-parser-plugin", "reasoning-parser-plugin",
               "io-processor-plugin", "worker-cls", "worker-extension-cls", "scheduler-cls", "model-class-overrides",
               "kv-transfer-config", "ec-transfer-config", "weight-transfer-config", "additional-config",
               "log-config-file", "logging-config"),
        **each(Needs.PROGRAM, "tool-server", "ray-workers-use-nsight"),
        **each(Needs.READS, "allowed-local-media-path", "mm-encoder-fp8-scale-path", "model-loader-extra-config"),
        **each(Needs.WRITES, "mm-encoder-fp8-scale-save-path", "download-dir", "profiler-config"),
        "trust-remote-code": Needs.REMOTE_CODE,
        "compilation-config": Privilege(
            Grant.CODE, Needs.CODE.why, keys=frozenset({"backend", "inductor_passes", "cache_dir", "debug_dump_path",
                                                  "inductor_compile_config"}),
        ),
        "structured-outputs-config": Privilege(Grant.CODE, Needs.CODE.why, keys=frozenset({"reasoning_parser_plugin"})),
        "load-format": Privilege(
            Grant.CODE, "loads weights by a plugin or from pickles",
            harmless=frozenset({"auto", "hf", "safetensors", "fastsafetensors", "dummy", "bitsandbytes", "gguf",
                                "mistral", "sharded_state"}),
        ),
        "chat-template": Needs.TEMPLATE,
        "generation-config": Needs.LISTED_FILE,
    },
    exact=frozenset({"reasoning-parser"}),
)  # fmt: skip
