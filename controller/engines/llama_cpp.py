"""llama.cpp: `llama-server`, for GGUF files. Checked against its server's documentation as of builds of 2026.

By default all layers go to the GPUs. Layers stay in host memory only where the user sets the number on the GPUs
(`args: {n-gpu-layers: 20}`): that is many times slower, so it never happens by chance.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from controller.domain.model_facts import ModelFacts, facts_from_json
from controller.domain.placement import Compatibility, Need, Share
from controller.domain.splits import Split
from controller.engines.base import (
    Analysis,
    EngineProcess,
    Launch,
    SingleEngine,
    SpecError,
    model_reference,
    probe_order,
    refuse_adapters,
    refuse_gangs,
    refuse_parallel,
)
from controller.engines.flags import figure, flag_of, flags, stated, text
from controller.engines.llama_cpp_options import LLAMA_CPP
from controller.engines.memory import UNKNOWN_CACHE_SHARE, Workload, cache_per_gpu, mib
from controller.engines.model_analysis import model_analysis, refuse_other_models
from controller.engines.options import COMMON_FLAGS, whole_gpus
from controller.engines.stated_memory import LEAST_CONTEXT, Bounds, bounded, stated_memory, too_small_note
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason

DEFAULT_CONTEXT: Final = 8192
DEFAULT_SLOTS: Final = 4  # llama-server's own default
CONTEXT_MIB: Final = 320  # a CUDA context without PyTorch's kernels: https://github.com/pytorch/pytorch/issues/28394
HOST_RUNTIME_MIB: Final = 512
_BATCH: Final = 512  # tokens of a physical batch, --ubatch-size
_WINDOW_PAD: Final = 256  # each slot's window and a physical batch are rounded up to it (llama-kv-cache-iswa.cpp)
# The compute buffer: the logits of a batch in 32 bits, and the activations of a layer (3 x hidden size and 3 x feed
# forward, in 32 bits). The logits alone are 250 of the 258.5 MiB that llama.cpp reports for Llama-3-8B.
_FLOAT: Final = 4
_THREE: Final = 3

# Bytes of an element: blocks of 32 with one scale (ggml-common.h).
_CACHE_TYPES: Final = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
_LAYERS: Final = ("n-gpu-layers", "gpu-layers")
_CONTEXT: Final = ("ctx-size",)
_SLOTS: Final = ("parallel",)
_DEFAULT_SLOTS: Final = 4  # of llama-server, where nothing says more
_UBATCH: Final = ("ubatch-size",)
_ADAPTERS: Final = ("lora", "mmproj")  # loaded beside the model; mmproj is a vision tower
_FIGURES: Final = frozenset({*_CONTEXT, *_SLOTS, *_UBATCH})
_READ: Final = frozenset({*_LAYERS, *_FIGURES, *_ADAPTERS, "cache-type-k", "cache-type-v"})
_LAYER_COUNT: Final = re.compile(r"[0-9]{1,6}")
_GPU_COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8)

_COMPATIBILITY: Final = Compatibility(
    engine="llama-cpp",
    os=frozenset({"linux", "darwin"}),
    arch=frozenset({"x86_64", "aarch64"}),
    vendors=frozenset({"nvidia", "apple"}),
)


class LlamaCppEngine(SingleEngine):
    """Spreads whole layers over the GPUs of one worker."""

    name = "llama-cpp"
    own_flags = frozenset({*_LAYERS, *_CONTEXT, *_SLOTS, *_ADAPTERS, *LLAMA_CPP.names, *LLAMA_CPP.short}) - COMMON_FLAGS

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises SpecError for models and args that cannot work."""
        refuse_other_models(spec, self.name, gguf=True)
        refuse_parallel(spec, self.name)
        refuse_gangs(spec, self.name)
        refuse_adapters(
            spec, "llama-server applies its adapters to every request; set args: {lora: FILE}, or use vllm or sglang"
        )
        _flags(spec)
        for name in ("cache-type-k", "cache-type-v"):
            if (given := text(spec, name)) is not None and given not in _CACHE_TYPES:
                raise SpecError(f"args.{name}: must be one of {', '.join(_CACHE_TYPES)}, got {given}")
        if text(spec, "split-mode") == "none":
            raise SpecError(
                "args.split-mode: is none, so one GPU would hold the whole model; set resources.gpus: 1 instead"
            )
        layers = _gpu_layers(spec)
        wants_gpus = spec.resources.gpus not in ("auto", 0) or bool(spec.placement.gpus)
        if layers == 0 and (wants_gpus or spec.resources.asks_for_a_gpu):
            raise SpecError("args.n-gpu-layers: is 0, so no GPU would be used; remove the GPUs or raise it")
        if layers != 0 and spec.resources.gpus == 0:
            raise SpecError("resources.gpus: is 0, but layers would go to a GPU; set args: {n-gpu-layers: 0}")
        LLAMA_CPP.check(spec, _READ, flag_of)

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:  # noqa: ARG002 - the same for every spec
        """Hosts on which it is installed; GPUs of NVIDIA and Apple."""
        return _COMPATIBILITY

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """Any number, since models have many layers; none with `n-gpu-layers: 0`."""
        return (0,) if _gpu_layers(spec) == 0 else _GPU_COUNTS

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """Reads the file's header."""
        return model_analysis(spec, _adapters(spec))

    def assumed(self, spec: DeploymentSpec) -> Need | None:
        """With stated memory or whole GPUs: a bounded context, and layers spread evenly."""
        if stated_memory(spec) is None and not whole_gpus(spec):
            return None
        context, slots = figure(spec, *_CONTEXT), figure(spec, *_SLOTS) or DEFAULT_SLOTS
        # These are its only bounds on memory, and the model's own context may be far longer.
        each = DEFAULT_CONTEXT if context is None else max(context // slots, 1)
        notes = (
            "assumed: layers are spread evenly, and fit the memory as stated in the spec",
            f"{slots} slots of {each} tokens{'' if context else ', by default'}",
        )
        return Need(None, host_memory_mib=HOST_RUNTIME_MIB, notes=notes, context=each, sequences=slots)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        """The memory of each GPU for each number of GPUs, and the host's memory."""
        context, slots = figure(spec, *_CONTEXT), figure(spec, *_SLOTS) or DEFAULT_SLOTS
        facts = facts_from_json(result)
        if facts.format != "gguf":
            return Need(None, refused=(Reason.ENGINE_UNSUPPORTED,), notes=("llama-cpp loads only GGUF files",))
        each = min(facts.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT) if context is None else context // slots
        batch = figure(spec, *_UBATCH) or _BATCH

        def workload_of(each: int, slots: int) -> Workload:
            return Workload(each, slots, _element_bytes(spec), batch, slots, slots * (batch + _WINDOW_PAD))

        def measured(count: int, each: int, slots: int) -> Share:
            return _share(facts, workload_of(each, slots), count, on_gpu)

        workload = workload_of(max(each, 1), slots)
        if stated(spec, ("swa-full",)) is True:
            facts = replace(facts, sliding_window=None)
        layers = (facts.layers or 0) + 1  # llama.cpp counts the output as one more
        wanted = _gpu_layers(spec)
        on_gpu = 1.0 if wanted is None else min(wanted / layers, 1.0)
        cache = _cache_per_gpu(facts, Split(1, 1, 1), workload)
        # A layer's cache is on the layer's device (llama.cpp, src/llama-kv-cache.cpp: `dev_layer(il)`).
        host = mib((facts.weight_bytes + cache) * (1 - on_gpu)) + HOST_RUNTIME_MIB
        notes = [f"{slots} slots of {each} tokens{'' if context else ', by default'}"]
        if on_gpu < 1:
            notes.append(f"{wanted} of {layers} layers on GPUs, the rest in host memory")
        if wanted == 0:
            parts = {"weights": mib(facts.weight_bytes), "cache": mib(cache)}
            return Need(0, host, parts, notes=tuple(notes), context=each, sequences=slots)
        shares = tuple(_share(facts, workload, count, on_gpu) for count in _GPU_COUNTS)
        if spec.resources.gpus != "auto" or spec.takes_all_named_gpus:
            count = spec.resources.gpus if spec.resources.gpus != "auto" else len(spec.placement.gpus)
            shares = (_share(facts, workload, count, on_gpu),)
        given = stated_memory(spec)
        if given is not None:
            fixed = figure(spec, *_SLOTS) is not None or context is not None
            least = workload.context if context is not None else min(workload.context, LEAST_CONTEXT)
            bounds = Bounds(workload.context, slots, least, slots if fixed else 1)
            shares = tuple(_bounded_share(partial(measured, one.pp), bounds, given) for one in shares)
            notes = ["memory as stated in the spec", *notes[1:]]
        found = Need(
            memory_mib=shares[0].memory_mib * shares[0].gpus,
            host_memory_mib=host,
            parts=shares[0].parts,
            notes=tuple(notes),
            shares=shares,
            context=each,
            sequences=slots,
        )
        return replace(found, notes=(*found.notes, *too_small_note(spec, found)))

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """`llama-server --model FILE`. It accepts any model name in requests."""
        argv = ["llama-server", "--model", model_reference(spec) or "", "--host", "127.0.0.1", "--port", "{port}"]
        argv.append("--metrics")
        if stated(spec, _LAYERS) is None:
            argv += ["--n-gpu-layers", "999" if launch.gpu_count else "0"]
        if launch.context is not None and launch.sequences is not None:
            if figure(spec, *_CONTEXT) is None:
                argv += ["--ctx-size", str(launch.context * launch.sequences)]
            if figure(spec, *_SLOTS) is None:
                argv += ["--parallel", str(launch.sequences)]
        return EngineProcess(
            argv=(*argv, *_flags(spec)),
            needs_port=True,
            probe=probe_order(spec, "/health"),
            request_gauges=("llamacpp:requests_processing", "llamacpp:requests_deferred"),
            queue_gauges=("llamacpp:requests_deferred",),
            cache_gauges=("llamacpp:kv_cache_usage_ratio",),
            serves_at_once=figure(spec, *_SLOTS) or launch.sequences or _DEFAULT_SLOTS,
        )


def _bounded_share(measure: Callable[[int, int], Share], bounds: Bounds, given_mib: int) -> Share:
    """The share with the most tokens that the stated memory holds; the least that is useful if even that exceeds it."""
    least = measure(bounds.least_context, bounds.least_sequences)
    found = bounded(lambda context, slots: measure(context, slots).memory_mib, bounds, given_mib)
    if found is None:
        return replace(least, least_mib=least.memory_mib)
    context, slots = found
    return replace(
        measure(context, slots), memory_mib=given_mib, least_mib=least.memory_mib, context=context, sequences=slots
    )


def _share(facts: ModelFacts, workload: Workload, count: int, on_gpu: float) -> Share:
    """The share of the GPU that holds most, with whole layers spread over `count` GPUs."""
    split = Split(1, count, 1)
    stage = 1 / count if not facts.layers else -(-facts.layers // count) / facts.layers
    element = facts.weight_bytes / facts.parameters if facts.parameters else 0.0
    embeddings = element * (facts.vocab or 0) * (facts.hidden_size or 0) if count > 1 else 0.0
    weights = (facts.weight_bytes - embeddings) * stage + embeddings
    passing = _THREE * ((facts.hidden_size or 0) + (facts.intermediate_size or 0))
    parts = {
        "weights": mib(weights * on_gpu),
        "adapters": mib(facts.adapter_bytes),  # a vision tower is kept whole
        "cache": mib(_cache_per_gpu(facts, split, workload) * on_gpu),
        "compute": mib(workload.batch_tokens * ((facts.vocab or 0) + passing) * _FLOAT),
        "context": CONTEXT_MIB,
    }
    parts = {name: size for name, size in parts.items() if size}
    return Share(1, count, 1, sum(parts.values()), parts, least_mib=sum(parts.values()))


def _flags(spec: DeploymentSpec) -> list[str]:
    return flags(spec, _FIGURES)


def _cache_per_gpu(facts: ModelFacts, split: Split, workload: Workload) -> float:
    """Bytes of the cache; a share of the weights where the file does not say enough."""
    cache = cache_per_gpu(facts, split, workload)
    return facts.weight_bytes * UNKNOWN_CACHE_SHARE / split.gpus if cache is None else cache


def _gpu_layers(spec: DeploymentSpec) -> int | None:
    """The number of layers on the GPUs; None: all.

    Raises:
        SpecError: the value is neither a number nor `all`.
    """
    value = text(spec, *_LAYERS)
    if value is None or value == "all":
        return None
    if _LAYER_COUNT.fullmatch(value) is None:
        raise SpecError("args.n-gpu-layers: must be a whole number or all")
    return int(value)


def _element_bytes(spec: DeploymentSpec) -> float:
    keys, values = (_CACHE_TYPES[text(spec, f"cache-type-{part}") or "f16"] for part in "kv")
    return (keys + values) / 2


def _adapters(spec: DeploymentSpec) -> tuple[str, ...]:
    given = (stated(spec, (name,)) for name in _ADAPTERS)
    lists = (value if isinstance(value, list) else [] if value is None else [value] for value in given)
    return tuple(str(one) for values in lists for one in values if not isinstance(one, bool))
