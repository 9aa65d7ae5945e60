"""SGLang's options, as its server arguments name them in versions 0.5.0 to 0.5.23."""

from typing import Any, Final

from controller.domain.access.grants import Grant
from controller.engines.arguments.flags import stated
from controller.engines.arguments.options import (
    Limit,
    Needs,
    Options,
    Privilege,
    Refused,
    each,
    host_memory_stated,
    whole_gpus,
)
from controller.engines.estimates.drafts import sglang_draft
from schemas.manifest.deployment import DeploymentSpec

# With these flags the server itself chooses the weights that stay in the host's memory.
UNKNOWN_OFFLOAD: Final = frozenset(
    {"offload-num-in-group", "offload-group-size", "ple-offload-embedding", "kt-weight-path", "kt-amx-weight-path",
     "enable-paged-experts"}
)  # fmt: skip
_SECOND_CACHE: Final = (
    "takes a multiple of each GPU's cache of the host's memory; state resources.host_memory, or resources.gpus, and "
    "with whole GPUs hicache-size"
)


def _bounded_tier(spec: DeploymentSpec, value: Any) -> bool:
    """Whether the size of the cache in the host's memory is known: with whole GPUs their own cache has no bound."""
    if host_memory_stated(spec):
        return True
    return Refused.FOR_EACH_GPU.allowed(spec, value) and (
        not whole_gpus(spec) or stated(spec, ("hicache-size",)) is not None
    )


def _reckoned(spec: DeploymentSpec, value: Any) -> bool:
    """Whether speculation needs no further model, or one whose files can be read, or the memory is stated."""
    return Refused.DRAFT.allowed(spec, value) or str(value).upper() == "NGRAM" or sglang_draft(spec) is not None


def _one_copy(spec: DeploymentSpec, _value: Any) -> bool:
    return spec.parallel.dp in ("auto", 1)


def _by_host(_spec: DeploymentSpec, value: Any) -> bool:
    return str(value) == "cpu"


SGLANG: Final = Options(
    aliases={
        "model": "model-path",
        "tensor-parallel-size": "tp-size",
        "pipeline-parallel-size": "pp-size",
        "data-parallel-size": "dp-size",
        "nccl-init-addr": "dist-init-addr",
        "speculative-draft-model": "speculative-draft-model-path",
        "enable-hicache": "enable-hierarchical-cache",
        "hierarchical-sparse-attention-extra-config": "hisparse-config",
        "grpc-http-sidecar-port": "smg-http-sidecar-port",
    },
    short={"h": "help"},
    limits={
        **each(Refused.PARALLEL, "tp", "dp", "tp-size", "pp-size", "dp-size"),
        **each(Refused.PLACEMENT, "nnodes", "node-rank", "dist-init-addr", "base-gpu-id", "gpu-id-step", "use-ray",
               "elastic-ep-backend", "elastic-ep-initial-size", "max-ep-size", "elastic-ep-join-mode",
               "elastic-ep-join-rank-offset", "dwdp-size", "nccl-port"),
        **each(Limit(Refused.DRAFT.fix, _reckoned), "speculative-algorithm", "speculative-draft-model-path"),
        **each(Refused.DRAFT, "enable-multi-layer-eagle", "uno-lora-path"),
        **each(Limit("the agent's proxy speaks HTTP; leave it out"), "grpc-mode", "smg-grpc-mode", "grpc-port",
               "smg-http-sidecar-port"),
        **each(Refused.KEYS, "api-key", "admin-api-key"),
        **each(Refused.FOR_EACH_GPU, "cpu-offload-gb", "hicache-size"),
        **each(Refused.HOST_MEMORY, "hicache-host-memory-fraction", "enable-weights-cpu-backup",
               "enable-draft-weights-cpu-backup", "enable-lmcache", "enable-flexkv", "enable-hisparse",
               "enable-elastic-expert-backup", "hicache-host-memory-mode"),
        "host": Refused.PROXY,
        "port": Refused.AGENT,
        "revision": Refused.REVISION,
        "enable-metrics": Limit("is set by Gpuward; always on: requests are counted by it"),
        "device": Limit("is set by Gpuward; engine sglang runs on GPUs"),
        "config": Refused.ARGS,
        "mem-fraction-static": Refused.RESOURCES,
        "max-total-tokens": Limit(
            "is set by Gpuward; it follows from context-length and max-running-requests; set those"
        ),
        "model-path": Refused.MODEL,
        "enable-dp-attention": Limit(
            "its copies share the GPUs of tp, which parallel.dp does not; leave parallel.dp out", _one_copy
        ),
        **each(Refused.PLAIN_HTTP, "ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-keyfile-password",
               "enable-ssl-refresh"),
        "fastapi-root-path": Refused.OWN_PATHS,
        "model-type": Limit("is set by Gpuward; engine sglang serves language models"),
        **each(Refused.ONE_PART, "disaggregation-mode", "decoupled-spec-role",
               "checkpoint-engine-wait-weights-before-ready", "gated-launch-port"),
        "weight-cache-mode": Limit("keeps weights on the GPU in a process of its own; leave it out"),
        "mm-feature-transport": Limit("takes memory of the GPU beside the claimed share; leave it out", _by_host),
        "keep-mm-feature-on-device": Limit("takes memory of the GPU beside the claimed share; leave it out"),
        "help": Refused.PRINTS,
        "enable-http2": Limit("the agent's proxy speaks HTTP/1.1; leave it out"),
        **each(Limit(_SECOND_CACHE, _bounded_tier), "enable-hierarchical-cache", "hicache-ratio"),
        **each(Refused.OFFLOADED, *UNKNOWN_OFFLOAD),
    },
    privileged={
        **each(Needs.CODE, "custom-weight-loader", "forward-hooks", "model-loader-extra-config",
               "hicache-storage-backend", "hicache-storage-backend-extra-config",
               "unified-cache-external-linker-backend", "unified-cache-external-linker-config", "radix-cache-backend"),
        **each(Needs.PROGRAM, "sidecar", "sidecar-args", "tool-server"),
        **each(Needs.TEMPLATE, "chat-template", "completion-template"),
        **each(Needs.LISTED_FILE, "speculative-token-map", "init-expert-location", "deepep-config",
               "speculative-adaptive-config", "log-requests-target"),
        **each(Needs.READS, "quantization-param-path", "modelopt-checkpoint-restore-path", "pdmux-config-path",
               "lmcache-config-file", "flexkv-config-file", "dllm-algorithm-config", "ds-channel-config-path",
               "decrypted-config-file", "decrypted-draft-config-file", "msprobe-dump-config",
               "speculative-dspark-sps-table-path", "speculative-dspark-confidence-sts-path",
               "speculative-ngram-external-corpus-path", "debug-tensor-dump-input-file", "weight-cache-socket"),
        **each(Needs.WRITES, "modelopt-checkpoint-save-path", "modelopt-export-path",
               "debug-tensor-dump-output-folder", "download-dir", "file-storage-path", "crash-dump-folder",
               "export-metrics-to-file-dir", "spec-trace-dir", "ple-offload-dir"),
        "trust-remote-code": Needs.REMOTE_CODE,
        "enable-custom-logit-processor": Privilege(Grant.CODE, "runs code that comes with requests"),
        "load-format": Privilege(
            Grant.CODE, "loads weights by a plugin, from pickles or from another host",
            harmless=frozenset({"auto", "safetensors", "fastsafetensors", "dummy", "bitsandbytes", "gguf", "mistral",
                                "sharded_state", "layered"}),
        ),
        "delete-ckpt-after-loading": Privilege(Grant.HOST_FILES, "deletes the model's files on the host"),
    },
    exact=frozenset({"dllm-algorithm", "export-metrics-to-file", "log-requests", "speculative-adaptive"}),
)  # fmt: skip
