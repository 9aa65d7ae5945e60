"""llama-server's options, as its argument parser names them in builds of 2025 and 2026."""

from typing import Any, Final

from controller.engines.arguments.options import Limit, Needs, Options, Refused, each, memories_stated, whole_gpus
from controller.engines.estimates.drafts import llama_cpp_draft
from controller.engines.estimates.llama_cpp_offload import only_to_host, unread_overrides
from schemas.manifest.deployment import DeploymentSpec

_PRESETS: Final = (
    "embd-gemma-default", "fim-qwen-1.5b-default", "fim-qwen-3b-default", "fim-qwen-7b-default", "fim-qwen-7b-spec",
    "fim-qwen-14b-spec", "fim-qwen-30b-default", "gpt-oss-20b-default", "gpt-oss-120b-default",
    "vision-gemma-4b-default", "vision-gemma-12b-default",
)  # fmt: skip
_DRAFTS: Final = (
    "spec-draft-model", "spec-draft-hf", "spec-draft-device", "spec-draft-ngl", "spec-draft-override-tensor",
    "spec-draft-ctx-size", "spec-draft-cpu-moe", "spec-draft-n-cpu-moe",
)  # fmt: skip


def _to_host(spec: DeploymentSpec, _value: Any) -> bool:
    """Whether tensors are only moved to the host, and their sizes are known or both memories are stated."""
    return only_to_host(spec) and (not unread_overrides(spec) or memories_stated(spec))


def _without_draft(spec: DeploymentSpec, value: Any) -> bool:
    """Whether speculation needs no further model, or one whose file can be read, or the memory is stated."""
    kinds = [kind for item in (value if isinstance(value, list) else [value]) for kind in str(item).split(",")]
    if Refused.DRAFT.allowed(spec, value) or all(kind == "none" or kind.startswith("ngram") for kind in kinds):
        return True
    own = {"none", "draft-simple", "draft-eagle3"}
    return llama_cpp_draft(spec) is not None and all(kind in own or kind.startswith("ngram") for kind in kinds)


def _draft_reckoned(spec: DeploymentSpec, value: Any) -> bool:
    """Whether the draft model is a file of the host, or the memory is stated."""
    return Refused.DRAFT.allowed(spec, value) or llama_cpp_draft(spec) is not None


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
        "cpu-moe-draft": "spec-draft-cpu-moe",
        "n-cpu-moe-draft": "spec-draft-n-cpu-moe",
        "spec-draft-ncmoe": "spec-draft-n-cpu-moe",
        "n-predict": "predict",
        "swa-checkpoints": "ctx-checkpoints",
        "temperature": "temp",
        "reranking": "rerank",
        "embeddings": "embedding",
        "usage": "help",
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
        "lcs": "lookup-cache-static", "lcd": "lookup-cache-dynamic", "nkvo": "no-kv-offload",
        "cmoed": "spec-draft-cpu-moe", "ncmoed": "spec-draft-n-cpu-moe", "mmdev": "mmproj-device", "h": "help",
        "cl": "cache-list",
        "jf": "json-schema-file", "j": "json-schema", "ag": "agent", "fa": "flash-attn", "kvu": "kv-unified",
        "kvo": "kv-offload", "cb": "cont-batching", "cram": "cache-ram", "ctxcp": "ctx-checkpoints", "t": "threads",
        "tb": "threads-batch", "n": "predict", "a": "alias", "s": "seed", "to": "timeout", "v": "verbose",
        "lv": "verbosity",
    },
    limits={
        **each(Refused.AGENT, "reuse-port", "port"),
        **each(Limit("Gpuward checks before the start that it fits; leave it out"), "fit", "fit-target", "fit-ctx"),
        **each(Refused.MODEL, "model", "model-url", "hf-repo", "hf-file", "docker-repo", "models-dir", "models-preset",
               "models-max", "models-autoload", *_PRESETS),
        **each(Refused.PLACEMENT, "device", "main-gpu", "mmproj-device"),
        **each(Refused.PLAIN_HTTP, "ssl-key-file", "ssl-cert-file"),
        **each(Refused.KEYS, "api-key", "api-key-file"),
        **each(Refused.PRINTS, "help", "version", "cache-list", "list-devices", "completion-bash"),
        "api-prefix": Refused.OWN_PATHS,
        "override-kv": Limit("changes the model after it was read for the estimate; claim whole GPUs", whole_gpus),
        "kv-unified-per-slot": Limit("is set by Gpuward; set ctx-size for all slots together, and parallel"),
        "spec-type": Limit(Refused.DRAFT.fix, _without_draft),
        "tensor-split": Limit("is set by Gpuward; each GPU gets as many layers, and the claims follow from that"),
        "rpc": Limit("is set by Gpuward; engine llama-cpp does not span workers"),
        "host": Refused.PROXY,
        "metrics": Limit("is set by Gpuward; always on: requests are counted by it"),
        "lora-scaled": Limit("is not read for the estimate; set lora, or claim whole GPUs", whole_gpus),
        "mmproj-url": Limit("is not read for the estimate; download the file and set mmproj"),
        **each(Refused.DRAFT, *_DRAFTS),
        "spec-draft-model": Limit(Refused.DRAFT.fix, _draft_reckoned),
        "override-tensor": Limit("moves tensors away from where they are claimed; name CPU as the target, and where a "
                                 "pattern is not a plain one, state resources.gpu_memory and resources.host_memory",
                                 _to_host),
    },
    privileged={
        **each(Needs.PROGRAM, "tools", "tools-runtime", "agent", "mcp-servers-config", "mcp-servers-json",
               "ui-mcp-proxy", "video-ffmpeg-dir"),
        **each(Needs.READS, "chat-template-file", "grammar-file", "json-schema-file", "media-path", "path",
               "ui-config-file", "lookup-cache-static"),
        **each(Needs.WRITES, "lookup-cache-dynamic", "slot-save-path", "log-file", "log-prompts-dir"),
        "chat-template": Needs.TEMPLATE,
    },
    exact=frozenset({
        "cache-type-k", "cache-type-v", "cpu-moe", "ctx-size", "grammar", "json-schema", "kv-unified", "lora", "mmproj",
        "n-gpu-layers", "ui", "ui-config", "webui", "webui-config",
    }),
)  # fmt: skip
