"""Memory of a model in llama-server: on the GPU that holds most, and on the host.

Checked against the server's log of a load and its sources, as of builds of 2026.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from controller.domain.model_facts import ModelFacts
from controller.domain.placement import Share
from controller.domain.splits import Split
from controller.engines.arguments.flags import figure, stated, text
from controller.engines.estimates.drafts import draft_bytes
from controller.engines.estimates.llama_cpp_offload import (
    Residence,
    cache_on_host,
    computes_on_gpu,
    residence,
    uses_host,
)
from controller.engines.estimates.memory import UNKNOWN_CACHE_SHARE, Workload, cache_per_gpu, mib
from controller.engines.estimates.stated_memory import Bounds, bounded
from controller.engines.estimates.states import slot_states
from schemas.manifest.deployment import DeploymentSpec

CONTEXT_MIB: Final = 320  # a CUDA context without PyTorch's kernels: https://github.com/pytorch/pytorch/issues/28394
_BATCH: Final = 512  # tokens of a physical batch, --ubatch-size
_WINDOW_PAD: Final = 256  # each slot's window and a physical batch are rounded up to it (llama-kv-cache-iswa.cpp)
# The compute buffer: the logits of a batch in 32 bits, and the activations of a layer (3 x hidden size and 3 x feed
# forward, in 32 bits). The logits alone are 250 of the 258.5 MiB that llama.cpp reports for Llama-3-8B.
_FLOAT: Final = 4
_THREE: Final = 3
# In addition, the mask of attention: each token of a batch against each cell of a slot's cache, in 16 bits. A small
# model was measured with 9.5, 37.5 and 133.5 MiB for slots of 4k, 32k and 128k tokens. Without flash attention the
# mask has 32 bits, and each head has scores of that size (build_attn_mha in llama-graph.cpp).
_MASK: Final = 2
_ATTENTION_OFF: Final = frozenset({"off", "disabled", "false", "0", "False"})
# Bytes of an element: blocks of 32 with a scale (ggml-common.h).
CACHE_TYPES: Final = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
# A vision tower's compute buffer, in addition to its file: users measure 0.9 to 1.4 GiB. An allowance, not derived.
IMAGES_MIB: Final = 1536
_UBATCH: Final = ("ubatch-size",)
_DRAFT_LAYERS: Final = ("spec-draft-ngl", "gpu-layers-draft", "n-gpu-layers-draft")


@dataclass(frozen=True, slots=True)
class Model:
    """A model as a spec loads it."""

    spec: DeploymentSpec  # its flags
    facts: ModelFacts  # of its files
    wanted: int | None  # layers on the GPUs, output included; None: all

    def workload(self, context: int, slots: int) -> Workload:
        """The load of `slots` slots of `context` tokens each."""
        batch = figure(self.spec, *_UBATCH) or _BATCH
        return Workload(context, slots, _element_bytes(self.spec, ""), batch, slots, slots * (batch + _WINDOW_PAD))

    def share(self, gpus: int, context: int, slots: int) -> Share:
        """The share of the GPU that holds most, with complete layers spread evenly."""
        workload = self.workload(context, slots)
        partly = self.wanted is not None or uses_host(self.spec)
        own = residence(self.facts, self.wanted, gpus) if partly else None
        parts = {
            "weights": mib(self._even_weights(gpus) if own is None else own.gpu_bytes),
            "adapters": mib(self.facts.adapter_bytes),  # a vision tower is not divided
            "draft": 0 if self._draft_on_host() else mib(self._draft(workload)),
            "cache": mib(self._gpu_cache(gpus, workload, own)),
            "compute": mib(self._compute(workload)),
            "images": 0 if self.images_on_host() else self.images_mib(),
            "offload": mib(own.largest_bytes) if own is not None and computes_on_gpu(self.spec) else 0,
            "context": CONTEXT_MIB,
        }
        parts = {name: size for name, size in parts.items() if size}
        return Share(1, gpus, 1, sum(parts.values()), parts, least_mib=sum(parts.values()))

    def host_mib(self, context: int, slots: int) -> int:
        """MiB of its weights and its cache in the host's memory."""
        workload = self.workload(context, slots)
        own = residence(self.facts, self.wanted, 1)
        cache = cache_bytes(self.facts, workload)
        if not cache_on_host(self.spec):
            # A layer's cache is on the layer's device (llama.cpp, src/llama-kv-cache.cpp: `dev_layer(il)`).
            cache *= 1 if self.wanted == 0 else own.host_layers / (self.facts.layers or 1)
        images = self.images_mib() if self.images_on_host() else 0
        return mib(own.host_bytes + cache + (self._draft(workload) if self._draft_on_host() else 0)) + images

    def _even_weights(self, gpus: int) -> float:
        facts = self.facts
        stage = 1 / gpus if not facts.layers else -(-facts.layers // gpus) / facts.layers
        element = facts.weight_bytes / facts.parameters if facts.parameters else 0.0
        embeddings = element * (facts.vocab or 0) * (facts.hidden_size or 0) if gpus > 1 else 0.0
        return (facts.weight_bytes - embeddings) * stage + embeddings

    def _gpu_cache(self, gpus: int, workload: Workload, own: Residence | None) -> float:
        if cache_on_host(self.spec):
            return 0.0
        if own is None or not self.facts.layers:
            return cache_bytes(self.facts, workload, gpus)
        return cache_bytes(self.facts, workload) * own.gpu_layers / self.facts.layers

    def _compute(self, workload: Workload) -> float:
        facts = self.facts
        passing = _THREE * ((facts.hidden_size or 0) + (facts.intermediate_size or 0))
        per_token = ((facts.vocab or 0) + passing) * _FLOAT + workload.context * self._mask(workload.sequences)
        draft = facts.draft
        if draft is not None and not self._draft_on_host():
            # It has its own context and buffer.
            own = _THREE * ((draft.hidden_size or 0) + (draft.intermediate_size or 0))
            per_token += ((draft.vocab or 0) + own) * _FLOAT + workload.context * _MASK
        return workload.batch_tokens * per_token

    def _mask(self, slots: int) -> int:
        """Bytes of the compute buffer for each token of a batch and of a slot's context."""
        cells = slots if stated(self.spec, ("kv-unified",)) is True else 1
        if text(self.spec, "flash-attn") in _ATTENTION_OFF:
            return cells * _FLOAT * (1 + (self.facts.heads or 0))
        return cells * _MASK

    def _draft(self, workload: Workload) -> float:
        """Bytes of the draft model on each GPU: the server may put it on any of them."""
        if self.facts.draft is None:
            return 0.0
        like = replace(workload, cache_bytes=_element_bytes(self.spec, "spec-draft-"))
        return draft_bytes(self.facts.draft, Split(1, 1, 1), like, None)

    def images_mib(self) -> int:
        """The buffer of a vision tower, if there is one."""
        return IMAGES_MIB if stated(self.spec, ("mmproj",)) is not None else 0

    def images_on_host(self) -> bool:
        off = stated(self.spec, ("mmproj-offload",)) is False or stated(self.spec, ("no-mmproj-offload",)) is True
        return off or self.wanted == 0

    def _draft_on_host(self) -> bool:
        return self.wanted == 0 or text(self.spec, *_DRAFT_LAYERS) == "0"


def cache_bytes(facts: ModelFacts, workload: Workload, gpus: int = 1) -> float:
    """Bytes of the cache on the GPU that holds most; if the file does not show it, a share of the weights."""
    cache = cache_per_gpu(facts, Split(1, gpus, 1), workload)
    kept = facts.weight_bytes * UNKNOWN_CACHE_SHARE / gpus if cache is None else cache
    return kept + slot_states(facts, workload.sequences, gpus)


def bounded_share(measure: Callable[[int, int], Share], bounds: Bounds, given_mib: int) -> Share:
    """The share with the most tokens that fit the stated memory; the useful minimum if even that does not fit."""
    least = measure(bounds.least_context, bounds.least_sequences)
    fitting = bounded(lambda context, slots: measure(context, slots).memory_mib, bounds, given_mib)
    if fitting is None:
        return replace(least, least_mib=least.memory_mib)
    context, slots = fitting
    return replace(
        measure(context, slots), memory_mib=given_mib, least_mib=least.memory_mib, context=context, sequences=slots
    )


def _element_bytes(spec: DeploymentSpec, of: str) -> float:
    """Bytes of an element of the cache. `of`: empty, or the prefix of the draft model's flags."""
    names = [(f"{of}type-{part}", f"cache-type-{part}-draft") if of else (f"cache-type-{part}",) for part in "kv"]
    keys, values = (CACHE_TYPES.get(text(spec, *flags) or "f16", CACHE_TYPES["f32"]) for flags in names)
    return (keys + values) / 2
