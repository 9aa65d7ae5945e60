"""Switches with a negated form `--no-x`, which `x: false` becomes, by server. `make test-flags` compares them.

Other switches are off by default, so `false` leaves them out.
"""

from typing import Final

VLLM_SWITCHES: Final = frozenset(
    {
        "allow-credentials", "allow-deprecated-quantization", "async-scheduling", "calculate-kv-scales",
        "cohere-is-reasoning-model", "cudagraph-metrics", "data-parallel-external-lb", "data-parallel-hybrid-lb",
        "dcp-q-replicate", "disable-cascade-attn", "disable-chunked-mm-input", "disable-custom-all-reduce",
        "disable-fastapi-docs", "disable-frontend-multiprocessing", "disable-hybrid-kv-cache-manager",
        "disable-log-requests", "disable-nccl-for-dp-synchronization", "disable-sliding-window",
        "disable-uvicorn-access-log", "enable-auto-tool-choice", "enable-batch-sharded-sampling",
        "enable-chunked-prefill", "enable-cumem-allocator", "enable-dbo", "enable-elastic-ep",
        "enable-ep-weight-filter", "enable-eplb", "enable-expert-parallel", "enable-fault-tolerance",
        "enable-flash-late-interaction", "enable-flashinfer-autotune", "enable-force-include-usage", "enable-hc-sp",
        "enable-layerwise-nvtx-tracing", "enable-log-deltas", "enable-log-outputs", "enable-log-requests",
        "enable-logging-iteration-details", "enable-lora", "enable-mamba-cache-stochastic-rounding",
        "enable-mamba-shared-prefix-checkpoint", "enable-mfu-metrics", "enable-mixed-moe-lora-format",
        "enable-mm-embeds", "enable-moe-shared-loras", "enable-nccl-comm-suspend", "enable-offline-docs",
        "enable-per-request-metrics", "enable-prefix-caching", "enable-prompt-embeds",
        "enable-prompt-tokens-details", "enable-request-id-headers", "enable-return-routed-experts",
        "enable-scale-out", "enable-server-load-tracking", "enable-shm-tensor-arena", "enable-sleep-mode",
        "enable-ssl-refresh", "enable-tokenizer-info-endpoint", "enable-tower-connector-lora",
        "enable-trace-replay", "enforce-eager", "eplb-log-balancedness", "exclude-tools-when-tool-choice-none",
        "fail-on-environ-validation", "fully-sharded-loras", "interleave-mm-strings", "jit-monitor-verbose",
        "kv-cache-metrics", "kv-sharing-fast-prefill", "language-model-only", "log-error-stack",
        "long-prefill-token-threshold-adaptive", "mm-device-do-normalize", "mm-encoder-only", "monokernel",
        "numa-bind", "ray-workers-use-nsight", "return-sampling-mask", "return-tokens-as-token-ids",
        "scheduler-reserve-full-isl", "skip-mm-profiling", "skip-tokenizer-init", "sleep-mode-offload-cudagraph",
        "specialize-active-lora", "swa-bounded-replay", "tokens-only", "trust-remote-code",
        "trust-request-chat-template", "trust-request-mm-kwargs", "use-fp64-gumbel", "use-replayssm",
        "use-tqdm-on-load",
    }
)  # fmt: skip
SGLANG_SWITCHES: Final = frozenset(
    {
        "dcp-replicate-q-proj", "dllm-fdfo", "enable-decoder-swa-bounded-replay", "enable-dsa-fused-indexer",
        "enable-fused-qk-norm-rope", "enable-tf32-matmul", "enable-tp-lm-head-all-to-all",
        "experts-shared-outer-loras", "lora-strict-loading", "mm-enable-dp-encoder", "ple-offload-embedding",
        "speculative-enable-w4a4-mxfp4-megamoe",
    }
)  # fmt: skip
LLAMA_CPP_SWITCHES: Final = frozenset(
    {
        "agent", "cache-idle-slots", "cache-prompt", "cont-batching", "context-shift", "cors-credentials", "escape",
        "jinja", "kv-offload", "kv-unified", "log-jsonl", "log-prefix", "log-timestamps", "mmap", "mmproj-auto",
        "mmproj-offload", "models-autoload", "op-offload", "perf", "prefill-assistant", "reasoning-preserve",
        "repack", "skip-chat-parsing", "slots", "spec-draft-backend-sampling", "ui", "ui-mcp-proxy", "warmup",
        "webui", "webui-mcp-proxy",
    }
)  # fmt: skip
TRANSFORMERS_SWITCHES: Final = frozenset(
    {
        "cb-use-cuda-graph", "compile", "continuous-batching", "enable-cors", "non-blocking",
        "trust-remote-code",
    }
)  # fmt: skip
