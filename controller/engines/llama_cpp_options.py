"""llama-server's options, as its argument parser names them in builds of 2025 and 2026."""

from typing import Any, Final

from controller.engines.options import (
    BY_AGENT,
    BY_MODEL,
    BY_PLACEMENT,
    BY_PROXY,
    DRAFT,
    HOST_MEMORY,
    PROGRAM,
    READS,
    TEMPLATE,
    WRITES,
    Limit,
    Options,
    host_memory_stated,
    whole_gpus,
)
from schemas.manifest.deployment import DeploymentSpec

_PRESETS: Final = (
    "embd-gemma-default", "fim-qwen-1.5b-default", "fim-qwen-3b-default", "fim-qwen-7b-default", "fim-qwen-7b-spec",
    "fim-qwen-14b-spec", "fim-qwen-30b-default", "gpt-oss-20b-default", "gpt-oss-120b-default",
    "vision-gemma-4b-default", "vision-gemma-12b-default",
)  # fmt: skip
_DRAFTS: Final = (
    "spec-draft-model", "spec-draft-hf", "spec-draft-device", "spec-draft-ngl", "spec-draft-override-tensor",
    "spec-draft-ctx-size",
)  # fmt: skip


def _to_host(spec: DeploymentSpec, value: Any) -> bool:
    """Whether tensors are only sent to the host, and its memory is stated."""
    rules = [rule for one in (value if isinstance(value, list) else [value]) for rule in str(one).split(",")]
    return host_memory_stated(spec) and all(rule.rpartition("=")[2].strip() == "CPU" for rule in rules)


LLAMA_CPP: Final = Options(
    aliases={
        "gpu-layers": "n-gpu-layers",
        "hf-repo-draft": "spec-draft-hf",
        "model-draft": "spec-draft-model",
        "device-draft": "spec-draft-device",
        "gpu-layers-draft": "spec-draft-ngl",
        "n-gpu-layers-draft": "spec-draft-ngl",
        "cache-type-k-draft": "spec-draft-type-k",
        "cache-type-v-draft": "spec-draft-type-v",
        "override-tensor-draft": "spec-draft-override-tensor",
        "ctx-size-draft": "spec-draft-ctx-size",
        "webui-mcp-proxy": "ui-mcp-proxy",
        "webui-config-file": "ui-config-file",
        "nkvo": "no-kv-offload",
    },
    short={
        "c": "ctx-size", "np": "parallel", "ngl": "n-gpu-layers", "ub": "ubatch-size", "b": "batch-size",
        "ctk": "cache-type-k", "ctv": "cache-type-v", "mm": "mmproj", "mmu": "mmproj-url", "dev": "device",
        "ot": "override-tensor", "cmoe": "cpu-moe", "ncmoe": "n-cpu-moe", "ncffn": "n-cpu-ffn", "sm": "split-mode",
        "ts": "tensor-split", "mg": "main-gpu", "fit": "fit", "fitt": "fit-target", "fitc": "fit-ctx",
        "m": "model", "mu": "model-url", "dr": "docker-repo", "hf": "hf-repo", "hfr": "hf-repo", "hff": "hf-file",
        "hft": "hf-token", "hfd": "spec-draft-hf", "hfrd": "spec-draft-hf", "md": "spec-draft-model",
        "devd": "spec-draft-device", "ngld": "spec-draft-ngl", "ctkd": "spec-draft-type-k",
        "ctvd": "spec-draft-type-v", "otd": "spec-draft-override-tensor", "cd": "spec-draft-ctx-size",
        "lcs": "lookup-cache-static", "lcd": "lookup-cache-dynamic", "f": "file", "bf": "binary-file",
        "jf": "json-schema-file", "j": "json-schema", "ag": "agent", "fa": "flash-attn", "kvu": "kv-unified",
        "kvo": "kv-offload", "cb": "cont-batching", "cram": "cache-ram", "ctxcp": "ctx-checkpoints", "t": "threads",
        "tb": "threads-batch", "n": "predict", "a": "alias", "s": "seed", "to": "timeout", "v": "verbose",
        "lv": "verbosity",
    },
    limits={
        **{name: Limit(BY_MODEL) for name in (
            "model", "model-url", "hf-repo", "hf-file", "docker-repo", "models-dir", "models-preset", "models-max",
            "models-autoload", *_PRESETS,
        )},
        **{name: Limit(BY_PLACEMENT) for name in ("device", "main-gpu")},
        "tensor-split": Limit("is set by Gpuward; each GPU gets as many layers, and the claims follow from that"),
        "rpc": Limit("is set by Gpuward; engine llama-cpp does not span workers"),
        "host": Limit(BY_PROXY),
        "port": Limit(BY_AGENT),
        "metrics": Limit("is set by Gpuward; always on: requests are counted by it"),
        "no-metrics": Limit("is set by Gpuward; always on: requests are counted by it"),
        "lora-scaled": Limit("is not read for the estimate; set lora, or claim whole GPUs", whole_gpus),
        "fit": Limit("Gpuward checks before the start that it fits; leave it out"),
        "fit-target": Limit("Gpuward checks before the start that it fits; leave it out"),
        "fit-ctx": Limit("Gpuward checks before the start that it fits; leave it out"),
        "mmproj-url": Limit("is not read for the estimate; download the file and set mmproj"),
        **dict.fromkeys(_DRAFTS, DRAFT),
        "override-tensor": Limit("moves tensors away from where they are claimed; name CPU as the target, and state "
                                 "resources.host_memory", _to_host),
        "cpu-moe": HOST_MEMORY,
        "n-cpu-moe": HOST_MEMORY,
        "n-cpu-ffn": HOST_MEMORY,
        "no-kv-offload": HOST_MEMORY,
    },
    privileged={
        "tools": PROGRAM,
        "tools-runtime": PROGRAM,
        "agent": PROGRAM,
        "mcp-servers-config": PROGRAM,
        "mcp-servers-json": PROGRAM,
        "ui-mcp-proxy": PROGRAM,
        "video-ffmpeg-dir": PROGRAM,
        "chat-template": TEMPLATE,
        "chat-template-file": READS,
        "grammar-file": READS,
        "json-schema-file": READS,
        "file": READS,
        "binary-file": READS,
        "in-file": READS,
        "api-key-file": READS,
        "ssl-key-file": READS,
        "ssl-cert-file": READS,
        "media-path": READS,
        "path": READS,
        "ui-config-file": READS,
        "lookup-cache-static": READS,
        "lookup-cache-dynamic": WRITES,
        "slot-save-path": WRITES,
        "log-file": WRITES,
        "log-prompts-dir": WRITES,
    },
    exact=frozenset({
        "api-key", "cache-type-k", "cache-type-v", "ctx-size", "grammar", "json-schema", "lora", "mmproj",
        "n-gpu-layers", "ui", "ui-config", "video", "webui", "webui-config",
    }),
)  # fmt: skip
