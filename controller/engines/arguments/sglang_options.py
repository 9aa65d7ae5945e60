"""SGLang's options, as its server arguments name them in versions 0.5.0 to 0.5.23."""

from typing import Any, Final

from controller.domain.grants import Grant
from controller.engines.arguments.flags import stated
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
    DRAFT,
    FOR_EACH_GPU,
    HOST_MEMORY,
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
    host_memory_stated,
    whole_gpus,
)
from controller.engines.estimates.drafts import sglang_draft
from schemas.manifest.deployment import DeploymentSpec

# With these the server itself chooses how many weights stay in the host's memory.
UNKNOWN_OFFLOAD: Final = frozenset(
    {"offload-num-in-group", "offload-group-size", "ple-offload-embedding", "kt-weight-path", "kt-amx-weight-path",
     "enable-paged-experts"}
)  # fmt: skip
_SECOND_CACHE: Final = (
    "takes a multiple of each GPU's cache of the host's memory; state resources.host_memory, or resources.gpus, and "
    "with whole GPUs hicache-size"
)


def _bounded_tier(spec: DeploymentSpec, value: Any) -> bool:
    """Whether the cache in the host's memory can be reckoned: on whole GPUs the one on the GPU has no bound."""
    if host_memory_stated(spec):
        return True
    return FOR_EACH_GPU.allowed(spec, value) and (not whole_gpus(spec) or stated(spec, ("hicache-size",)) is not None)


def _reckoned(spec: DeploymentSpec, value: Any) -> bool:
    """Whether speculation needs no further model, or one whose files can be read, or the memory is stated."""
    return DRAFT.allowed(spec, value) or str(value).upper() == "NGRAM" or sglang_draft(spec) is not None


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
        "host": Limit(BY_PROXY),
        "port": Limit(BY_AGENT),
        "revision": Limit(BY_REVISION),
        "enable-metrics": Limit("is set by Gpuward; always on: requests are counted by it"),
        "device": Limit("is set by Gpuward; engine sglang runs on GPUs"),
        "config": Limit(BY_ARGS),
        "mem-fraction-static": Limit(BY_RESOURCES),
        "max-total-tokens": Limit(
            "is set by Gpuward; it follows from context-length and max-running-requests; set those"
        ),
        "model-path": Limit(BY_MODEL),
        "tp": Limit(BY_PARALLEL), "dp": Limit(BY_PARALLEL),
        "tp-size": Limit(BY_PARALLEL), "pp-size": Limit(BY_PARALLEL), "dp-size": Limit(BY_PARALLEL),
        "enable-dp-attention": Limit(
            "its copies share the GPUs of tp, which parallel.dp does not; leave parallel.dp out", _one_copy
        ),
        "nnodes": Limit(BY_PLACEMENT), "node-rank": Limit(BY_PLACEMENT), "dist-init-addr": Limit(BY_PLACEMENT),
        "base-gpu-id": Limit(BY_PLACEMENT), "gpu-id-step": Limit(BY_PLACEMENT), "use-ray": Limit(BY_PLACEMENT),
        "elastic-ep-backend": Limit(BY_PLACEMENT), "elastic-ep-initial-size": Limit(BY_PLACEMENT),
        "max-ep-size": Limit(BY_PLACEMENT), "elastic-ep-join-mode": Limit(BY_PLACEMENT),
        "elastic-ep-join-rank-offset": Limit(BY_PLACEMENT), "dwdp-size": Limit(BY_PLACEMENT),
        "speculative-algorithm": Limit(DRAFT.fix, _reckoned),
        "speculative-draft-model-path": Limit(DRAFT.fix, _reckoned),
        "enable-multi-layer-eagle": DRAFT,
        "uno-lora-path": DRAFT,
        "grpc-mode": Limit("the agent's proxy speaks HTTP; leave it out"),
        "smg-grpc-mode": Limit("the agent's proxy speaks HTTP; leave it out"),
        "grpc-port": Limit("the agent's proxy speaks HTTP; leave it out"),
        "smg-http-sidecar-port": Limit("the agent's proxy speaks HTTP; leave it out"),
        **dict.fromkeys(("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "ssl-keyfile-password", "enable-ssl-refresh"),
                        PLAIN_HTTP),
        "api-key": KEYS, "admin-api-key": KEYS,
        "fastapi-root-path": OWN_PATHS,
        "model-type": Limit("is set by Gpuward; engine sglang serves language models"),
        **dict.fromkeys(("disaggregation-mode", "decoupled-spec-role",
                         "checkpoint-engine-wait-weights-before-ready", "gated-launch-port"), ONE_PART),
        "weight-cache-mode": Limit("keeps weights on the GPU in a process of its own; leave it out"),
        "nccl-port": Limit(BY_PLACEMENT),
        "mm-feature-transport": Limit("takes memory of the GPU beside the claimed share; leave it out", _by_host),
        "keep-mm-feature-on-device": Limit("takes memory of the GPU beside the claimed share; leave it out"),
        "help": PRINTS,
        "enable-http2": Limit("the agent's proxy speaks HTTP/1.1; leave it out"),
        "cpu-offload-gb": FOR_EACH_GPU,
        **dict.fromkeys(("enable-hierarchical-cache", "hicache-ratio"), Limit(_SECOND_CACHE, _bounded_tier)),
        "hicache-size": FOR_EACH_GPU,
        **dict.fromkeys(UNKNOWN_OFFLOAD, OFFLOADED),
        "hicache-host-memory-fraction": HOST_MEMORY, "enable-weights-cpu-backup": HOST_MEMORY,
        "enable-draft-weights-cpu-backup": HOST_MEMORY, "enable-lmcache": HOST_MEMORY, "enable-flexkv": HOST_MEMORY,
        "enable-hisparse": HOST_MEMORY,
        "enable-elastic-expert-backup": HOST_MEMORY, "hicache-host-memory-mode": HOST_MEMORY,
    },
    privileged={
        "trust-remote-code": REMOTE_CODE,
        "custom-weight-loader": CODE,
        "forward-hooks": CODE,
        "model-loader-extra-config": CODE,
        "enable-custom-logit-processor": Privilege(Grant.CODE, "runs code that comes with requests"),
        "hicache-storage-backend": CODE,
        "hicache-storage-backend-extra-config": CODE,
        "unified-cache-external-linker-backend": CODE,
        "unified-cache-external-linker-config": CODE,
        "radix-cache-backend": CODE,
        "load-format": Privilege(
            Grant.CODE, "loads weights by a plugin, from pickles or from another host",
            harmless=frozenset({"auto", "safetensors", "fastsafetensors", "dummy", "bitsandbytes", "gguf", "mistral",
                                "sharded_state", "layered"}),
        ),
        "sidecar": PROGRAM,
        "sidecar-args": PROGRAM,
        "tool-server": PROGRAM,
        "chat-template": TEMPLATE,
        "completion-template": TEMPLATE,
        "speculative-token-map": LISTED_FILE,
        "init-expert-location": LISTED_FILE,
        "deepep-config": LISTED_FILE,
        "quantization-param-path": READS,
        "modelopt-checkpoint-restore-path": READS,
        "modelopt-checkpoint-save-path": WRITES,
        "modelopt-export-path": WRITES,
        "pdmux-config-path": READS,
        "lmcache-config-file": READS,
        "flexkv-config-file": READS,
        "dllm-algorithm-config": READS,
        "ds-channel-config-path": READS,
        "decrypted-config-file": READS,
        "decrypted-draft-config-file": READS,
        "msprobe-dump-config": READS,
        "speculative-dspark-sps-table-path": READS,
        "speculative-dspark-confidence-sts-path": READS,
        "speculative-ngram-external-corpus-path": READS,
        "speculative-adaptive-config": LISTED_FILE,
        "debug-tensor-dump-input-file": READS,
        "debug-tensor-dump-output-folder": WRITES,
        "delete-ckpt-after-loading": Privilege(Grant.HOST_FILES, "deletes the model's files on the host"),
        "download-dir": WRITES,
        "file-storage-path": WRITES,
        "crash-dump-folder": WRITES,
        "export-metrics-to-file-dir": WRITES,
        "log-requests-target": LISTED_FILE,
        "spec-trace-dir": WRITES,
        "ple-offload-dir": WRITES,
        "weight-cache-socket": READS,
    },
    exact=frozenset({"dllm-algorithm", "export-metrics-to-file", "log-requests", "speculative-adaptive"}),
)  # fmt: skip
