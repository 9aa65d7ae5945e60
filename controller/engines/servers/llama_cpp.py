"""llama.cpp: `llama-server`, for GGUF files. Checked against its server's documentation as of builds of 2026.

By default all layers are on the GPUs. Layers stay in host memory only if the user sets the number on the GPUs
(`args: {n-gpu-layers: 20}`), since that is many times slower.
"""

import re
from dataclasses import replace
from functools import partial
from typing import Any, Final

from controller.domain.model_facts import facts_from_json
from controller.domain.placement import Need
from controller.engines.arguments.flags import Writing, figure, flags, stated, text
from controller.engines.arguments.llama_cpp_options import LLAMA_CPP
from controller.engines.arguments.options import COMMON_FLAGS, host_memory_stated, whole_gpus
from controller.engines.arguments.switches import LLAMA_CPP_SWITCHES
from controller.engines.base import (
    Analysis,
    Engine,
    EngineProcess,
    Launch,
    SpecError,
    model_reference,
    probe_order,
    refuse_splits,
)
from controller.engines.estimates.drafts import check_draft, llama_cpp_draft
from controller.engines.estimates.llama_cpp_memory import CACHE_TYPES, Model, bounded_share, cache_bytes
from controller.engines.estimates.llama_cpp_offload import OFFLOAD_FLAGS, check_offload, host_rules, uses_host
from controller.engines.estimates.memory import mib, without_windows
from controller.engines.estimates.model_analysis import model_analysis, refuse_other_models, unknown_need, unread_of
from controller.engines.estimates.stated_memory import LEAST_CONTEXT, Bounds, stated_memory, too_small_note
from controller.engines.servers.table import SERVERS
from schemas.engine_builds import LLAMA_CPP_WITHOUT_CACHE_RAM
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason

DEFAULT_CONTEXT: Final = 8192
DEFAULT_SLOTS: Final = 4  # llama-server's own default
HOST_RUNTIME_MIB: Final = 512
# Its cache of prompts in host memory may grow to 8 GiB (https://github.com/ggml-org/llama.cpp/pull/16391).
CACHE_RAM_MIB: Final = 1024

_LAYERS: Final = ("n-gpu-layers", "gpu-layers")
_CONTEXT: Final = ("ctx-size",)
_SLOTS: Final = ("parallel",)
_UBATCH: Final = ("ubatch-size",)
_CACHE_RAM: Final = ("cache-ram",)
_ADAPTERS: Final = ("lora", "mmproj")  # loaded with the model; mmproj is a vision tower
_FIGURES: Final = frozenset({*_CONTEXT, *_SLOTS, *_UBATCH})
_READ: Final = frozenset({*_LAYERS, *_FIGURES, *_ADAPTERS, *_CACHE_RAM, *OFFLOAD_FLAGS, "cache-type-k", "cache-type-v"})
_LAYER_COUNT: Final = re.compile(r"[0-9]{1,6}")
_ALL_LAYERS: Final = 500  # more layers than any model has
_GPU_COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8)


class LlamaCppEngine(Engine):
    """Spreads complete layers over the GPUs of one worker."""

    name = "llama-cpp"
    server = SERVERS["llama-cpp"]
    own_flags = (
        frozenset({*_LAYERS, *_CONTEXT, *_SLOTS, *_ADAPTERS, *OFFLOAD_FLAGS, *LLAMA_CPP.names, *LLAMA_CPP.short})
        - COMMON_FLAGS
    )

    def validate(self, spec: DeploymentSpec) -> None:
        refuse_other_models(spec, self.name, gguf=True)
        refuse_splits(
            spec,
            self.name,
            "llama-server applies its adapters to every request; set args: {lora: FILE}, or use vllm or sglang",
        )
        _flags(spec)
        _cache_ram(spec)
        check_offload(spec)
        check_draft(llama_cpp_draft(spec), spec, ("spec-draft-model", "model-draft"))
        for name in ("cache-type-k", "cache-type-v"):
            if (given := text(spec, name)) is not None and given not in CACHE_TYPES:
                raise SpecError(f"args.{name}: must be one of {', '.join(CACHE_TYPES)}, got {given}")
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
        LLAMA_CPP.check(spec, _READ)

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:
        """Any number, since models have many layers; (0,) with `n-gpu-layers: 0`."""
        return (0,) if _gpu_layers(spec) == 0 else _GPU_COUNTS

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        partly = uses_host(spec) or _gpu_layers(spec) not in (None, 0)
        rules = host_rules(spec) if partly else None
        return model_analysis(spec, _adapters(spec), llama_cpp_draft(spec), rules)

    def assumed(self, spec: DeploymentSpec) -> Need | None:
        """With stated memory or exclusive GPUs: a bounded context, and layers spread evenly."""
        if stated_memory(spec) is None and not whole_gpus(spec):
            return None
        partly = (_gpu_layers(spec) or _ALL_LAYERS) < _ALL_LAYERS
        if (uses_host(spec) or partly) and not host_memory_stated(spec):
            return None  # the part of the file in the host's memory is unknown
        context, slots = figure(spec, *_CONTEXT), figure(spec, *_SLOTS) or DEFAULT_SLOTS
        # Its only bounds on memory; the model's own context may be far longer.
        each = DEFAULT_CONTEXT if context is None else max(context // slots, 1)
        notes = (
            "assumed: layers are spread evenly, and fit the memory as stated in the spec",
            f"{slots} slots of {each} tokens{'' if context else ', by default'}",
        )
        host = HOST_RUNTIME_MIB + _cache_ram(spec)
        return Need(None, host_memory_mib=host, notes=notes, context=each, sequences=slots)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        context, slots = figure(spec, *_CONTEXT), figure(spec, *_SLOTS) or DEFAULT_SLOTS
        facts = facts_from_json(result)
        if facts.format != "gguf":
            return Need(None, refused=(Reason.ENGINE_UNSUPPORTED,), notes=("llama-cpp loads only GGUF files",))
        if (unread := unread_of(facts)) is not None:
            assumed = self.assumed(spec)
            return unknown_need(unread) if assumed is None else replace(assumed, notes=(*assumed.notes, unread))
        each = min(facts.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT) if context is None else context // slots
        if stated(spec, ("swa-full",)) is True:
            facts = without_windows(facts)
        wanted = _gpu_layers(spec)
        model, full_context = Model(spec, facts, wanted), max(each, 1)
        own_mib = model.host_mib(full_context, slots)
        host = own_mib + HOST_RUNTIME_MIB + _cache_ram(spec)
        notes = [f"{slots} slots of {each} tokens{'' if context else ', by default'}", *_host_notes(model, own_mib)]
        if wanted == 0:
            workload = model.workload(full_context, slots)
            parts = {"weights": mib(facts.weight_bytes), "cache": mib(cache_bytes(facts, workload))}
            return Need(0, host, parts, notes=tuple(notes), context=each, sequences=slots)
        shares = tuple(model.share(count, full_context, slots) for count in _GPU_COUNTS)
        if spec.resources.gpus != "auto" or spec.takes_all_named_gpus:
            count = spec.resources.gpus if spec.resources.gpus != "auto" else len(spec.placement.gpus)
            shares = (model.share(count, full_context, slots),)
        given = stated_memory(spec)
        if given is not None:
            fixed = figure(spec, *_SLOTS) is not None or context is not None
            least = full_context if context is not None else min(full_context, LEAST_CONTEXT)
            bounds = Bounds(full_context, slots, least, slots if fixed else 1)
            shares = tuple(bounded_share(partial(model.share, share.pp), bounds, given) for share in shares)
            notes = ["memory as stated in the spec", *notes[1:]]
        need = Need(
            memory_mib=shares[0].memory_mib * shares[0].gpus,
            host_memory_mib=host,
            parts=shares[0].parts,
            notes=tuple(notes),
            shares=shares,
            context=each,
            sequences=slots,
        )
        return replace(need, notes=(*need.notes, *too_small_note(spec, need)))

    def process(self, spec: DeploymentSpec, launch: Launch) -> EngineProcess:
        """`llama-server --model FILE`. It accepts any model name in requests."""
        argv = ["llama-server", "--model", model_reference(spec) or "", "--host", launch.host, "--port", "{port}"]
        argv.append("--metrics")
        if launch.name and stated(spec, ("alias",)) is None:
            argv += ["--alias", launch.name]
        if stated(spec, _CACHE_RAM) is None and LLAMA_CPP_WITHOUT_CACHE_RAM not in launch.builds:
            argv += ["--cache-ram", str(_cache_ram(spec))]
        if stated(spec, _LAYERS) is None:
            argv += ["--n-gpu-layers", "999" if launch.gpu_count else "0"]
        if launch.gpu_count > 1:
            # The default splits by free memory, so a GPU with more of it would exceed its claim.
            argv += ["--tensor-split", ",".join("1" * launch.gpu_count)]
        if launch.context is not None and launch.sequences is not None:
            if figure(spec, *_CONTEXT) is None:
                argv += ["--ctx-size", str(launch.context * launch.sequences)]
            if figure(spec, *_SLOTS) is None:
                argv += ["--parallel", str(launch.sequences)]
        return EngineProcess(
            argv=(*argv, *_flags(spec)),
            needs_port=True,
            probe=probe_order(spec, "/health"),
            metrics=self.server.metrics,
            serves_at_once=figure(spec, *_SLOTS) or launch.sequences or DEFAULT_SLOTS,
        )


def _cache_ram(spec: DeploymentSpec) -> int:
    """MiB of host memory for its cache of prompts: as stated, else bounded, and within a stated claim.

    Raises:
        SpecError: the value is not a whole number, or unbounded although the host's memory is not stated.
    """
    value = text(spec, *_CACHE_RAM)
    resources = spec.resources
    if value is None:
        own = resources.host_memory
        return CACHE_RAM_MIB if isinstance(own, str) else min(CACHE_RAM_MIB, max(own - HOST_RUNTIME_MIB, 0))
    if value == "-1" and not isinstance(resources.host_memory, str):
        return 0  # no own bound, but within the stated host memory
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise SpecError("args.cache-ram: must be MiB of host memory, such as 2048; 0 for none")
    return int(value)


def _host_notes(model: Model, own_mib: int) -> list[str]:
    notes = []
    if model.wanted is not None and model.wanted <= (model.facts.layers or 0):
        notes.append(f"{model.wanted} of {(model.facts.layers or 0) + 1} layers on GPUs, the rest in host memory")
    if own_mib and model.wanted != 0:
        notes.append(f"{own_mib / 1024:.2f} GiB of weights and cache in host memory")
    if model.facts.draft is not None:
        notes.append("with a draft model")
    return notes


def _flags(spec: DeploymentSpec) -> list[str]:
    return flags(spec, Writing(_FIGURES, switches=LLAMA_CPP_SWITCHES))


def _gpu_layers(spec: DeploymentSpec) -> int | None:
    """The number of layers on the GPUs; None: all. Raises SpecError."""
    value = text(spec, *_LAYERS)
    if value is None or value == "all":
        return None
    if _LAYER_COUNT.fullmatch(value) is None:
        raise SpecError("args.n-gpu-layers: must be a whole number or all")
    return int(value)


def _adapters(spec: DeploymentSpec) -> tuple[str, ...]:
    given = (stated(spec, (name,)) for name in _ADAPTERS)
    lists = (value if isinstance(value, list) else [] if value is None else [value] for value in given)
    return tuple(str(value) for values in lists for value in values if not isinstance(value, bool))
