"""SGLang's options, as its server arguments name them in versions 0.5.0 to 0.5.23."""

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


def _without_draft(spec: DeploymentSpec, value: Any) -> bool:
    return DRAFT.allowed(spec, value) or str(value).upper() == "NGRAM"


def _one_copy(spec: DeploymentSpec, _value: Any) -> bool:
    return spec.parallel.dp in ("auto", 1)


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
        "elastic-ep-join-mode": "ep-join-mode",
        "elastic-ep-join-rank-offset": "ep-join-rank-offset",
    },
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
        "tp": Limit(BY_PARALLEL), "pp": Limit(BY_PARALLEL), "dp": Limit(BY_PARALLEL),
        "tp-size": Limit(BY_PARALLEL), "pp-size": Limit(BY_PARALLEL), "dp-size": Limit(BY_PARALLEL),
        "enable-dp-attention": Limit(
            "its copies share the GPUs of tp, which parallel.dp does not; leave parallel.dp out", _one_copy
        ),
        "nnodes": Limit(BY_PLACEMENT), "node-rank": Limit(BY_PLACEMENT), "dist-init-addr": Limit(BY_PLACEMENT),
        "base-gpu-id": Limit(BY_PLACEMENT), "gpu-id-step": Limit(BY_PLACEMENT), "use-ray": Limit(BY_PLACEMENT),
        "elastic-ep-backend": Limit(BY_PLACEMENT), "elastic-ep-initial-size": Limit(BY_PLACEMENT),
        "max-ep-size": Limit(BY_PLACEMENT), "ep-join-mode": Limit(BY_PLACEMENT),
        "ep-join-rank-offset": Limit(BY_PLACEMENT), "dwdp-size": Limit(BY_PLACEMENT),
        "speculative-algorithm": Limit(DRAFT.fix, _without_draft),
        "speculative-draft-model-path": DRAFT,
        "enable-multi-layer-eagle": DRAFT,
        "uno-lora-path": DRAFT,
        "grpc-mode": Limit("the agent's proxy speaks HTTP; leave it out"),
        "smg-grpc-mode": Limit("the agent's proxy speaks HTTP; leave it out"),
        "enable-http2": Limit("the agent's proxy speaks HTTP/1.1; leave it out"),
        "cpu-offload-gb": HOST_MEMORY, "offload-num-in-group": HOST_MEMORY, "offload-group-size": HOST_MEMORY,
        "enable-hierarchical-cache": HOST_MEMORY, "hicache-ratio": HOST_MEMORY, "hicache-size": HOST_MEMORY,
        "hicache-host-memory-fraction": HOST_MEMORY, "enable-weights-cpu-backup": HOST_MEMORY,
        "enable-draft-weights-cpu-backup": HOST_MEMORY, "ple-offload-embedding": HOST_MEMORY,
        "kt-weight-path": HOST_MEMORY, "enable-lmcache": HOST_MEMORY, "enable-flexkv": HOST_MEMORY,
    },
    privileged={
        "trust-remote-code": REMOTE_CODE,
        "custom-weight-loader": CODE,
        "forward-hooks": CODE,
        "stat-loggers": CODE,
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
        "custom-sigquit-handler": CODE,
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
        "decrypted-config-file": READS,
        "decrypted-draft-config-file": READS,
        "msprobe-dump-config": READS,
        "speculative-dspark-sps-table-path": READS,
        "speculative-dspark-confidence-sts-path": READS,
        "speculative-ngram-external-corpus-path": READS,
        "speculative-adaptive-config": LISTED_FILE,
        "debug-tensor-dump-input-file": READS,
        "debug-tensor-dump-output-folder": WRITES,
        "ssl-keyfile": READS,
        "ssl-certfile": READS,
        "ssl-ca-certs": READS,
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
