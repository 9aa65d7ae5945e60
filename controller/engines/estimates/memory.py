"""Formulae for the memory of a model on each GPU, from its files; in bytes unless named MiB.

They hold for all engines, which add the overhead of a split, such as contexts and graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from controller.domain.model_facts import CachedLayers, ModelFacts
from controller.domain.splits import Split

MIB: Final = 2**20
MOST_MIB: Final = 2**40

# Safetensors' names of floating point types. An engine converts them into its working type.
_FLOAT_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# The config's names, and those of engines' flags.
DTYPE_BYTES: Final = {
    "float64": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
}  # fmt: skip
# For configs without the size of a token's cache: the share of the weights that the placement cases allow for all else.
# A guess, which the need's notes mention.
UNKNOWN_CACHE_SHARE: Final = 0.2
# The memory of a profiling pass of vLLM, in elements per token of a batch: the gated feed forward's two halves and
# their product (3 x intermediate size); residual, queries, keys, values, attention and output (6 x hidden size). Per
# sequence: the logits in 32 bits, and a copy for sampling. With 8192 tokens and 256 sequences that is 1.27 GiB for
# Llama-3-8B. vLLM measured 1.26 GiB with tp 1 and with tp 2, so it is not divided by tp
# (https://github.com/vllm-project/vllm/pull/10511).
_FEED_FORWARD: Final = 3
_AROUND_ATTENTION: Final = 6
_LOGIT_BYTES: Final = 8
# The index of a sparse layer: both servers keep one byte per element of a token's key, and four bytes of scale per 128
# elements, whatever the cache's type (DeepseekV32IndexerCache of vLLM, NSATokenToKVPool of SGLang).
_INDEX_BLOCK: Final = 128
_INDEX_SCALE_BYTES: Final = 4
_ABOUT_AS_MANY: Final = 1.5


def mib(size: float) -> int:
    """Bytes as MiB, rounded up; at most an exbibyte, since a config may claim sizes beyond 64 bits."""
    return min(-(-int(size) // MIB), MOST_MIB)


@dataclass(frozen=True, slots=True)
class Workload:
    """The load of an engine."""

    context: int  # tokens of the longest sequence, prompt and answer together
    sequences: int  # number of concurrent sequences of that length
    cache_bytes: float  # bytes of an element of the key-value cache; the mean if keys and values differ
    batch_tokens: int  # most tokens in one step of the model
    batch_sequences: int  # most sequences in one step
    # tokens of all sequences beyond the windows of a layer: the tokens of a step enter before the oldest leave
    beyond_windows: int = 0
    window_groups: bool = False  # with windows, layers are allocated in groups; see `in_groups`


def loaded_bytes(facts: ModelFacts, dtype_bytes: int | None) -> int:
    """Bytes of all loaded tensors: floating point in the working type (None: as stored), packed tensors as stored."""
    if dtype_bytes is None:
        return facts.weight_bytes
    floats = {t: n for t, n in facts.dtypes.items() if t in _FLOAT_BYTES}
    return facts.weight_bytes + sum(n * dtype_bytes // _FLOAT_BYTES[t] - n for t, n in floats.items())


def weights_per_gpu(facts: ModelFacts, split: Split, total_bytes: int) -> int:
    """Weights on the GPU that holds most.

    Tensor parallelism divides every matrix, also embeddings and experts. Pipeline stages take complete layers, the
    largest `ceil(layers / pp)`. The first stage has the embeddings, the last has the head of the same size. Two parts
    are not divided: the projections into the latent of multi-head latent attention, and key-value heads if there are
    fewer than GPUs (Megatron-LM, arXiv:1909.08053; vLLM's `ReplicatedLinear` and `QKVParallelLinear`).
    """
    element = total_bytes / facts.parameters if facts.parameters else 2.0
    stage, hidden = stage_share(facts, split.pp), facts.hidden_size or 0
    embeddings = min((facts.vocab or 0) * hidden * element, total_bytes / 2)
    staged = total_bytes if split.pp == 1 else (total_bytes - embeddings) * stage + embeddings
    kept, divisor = 0.0, split.tp  # bytes not divided by tp, and their own divisor
    if facts.kv_lora_rank is not None:
        kept, divisor = hidden * (facts.kv_lora_rank + (facts.qk_rope_head_dim or 0)) * element, 1
    elif facts.kv_heads is not None and facts.kv_heads < split.tp:
        kept, divisor = 2 * hidden * (facts.head_dim or 0) * facts.kv_heads * element, facts.kv_heads
    kept *= (facts.layers or 0) * stage
    return int((staged - kept) / split.tp + kept / divisor)


def stage_share(facts: ModelFacts, pp: int) -> float:
    """The share of the layers on the largest pipeline stage."""
    return 1 / pp if not facts.layers else -(-facts.layers // pp) / facts.layers


def cached_layers(facts: ModelFacts) -> tuple[CachedLayers, ...] | None:
    """The layers with a cache; None if the files do not show them.

    Multi-head latent attention keeps one latent and one rotary key (DeepSeek-V2, arXiv:2405.04434, section 2.1):
    `kv_lora_rank + qk_rope_head_dim`; sparse attention adds an index. Other models keep a key and a value for each
    key-value head (grouped query attention, arXiv:2305.13245): `kv_heads x (head_dim + v_head_dim)`.
    """
    if facts.encoder:
        return ()
    if facts.layers is None or facts.unknown is not None:
        return None
    if facts.cached:
        return facts.cached
    caching = facts.layers - facts.uncached_layers
    if not caching:
        return ()
    full = caching if facts.full_layers is None or facts.sliding_window is None else facts.full_layers
    if facts.kv_lora_rank is not None:
        heads, size, divided = 1, facts.kv_lora_rank + (facts.qk_rope_head_dim or 0), False
    elif facts.kv_heads is None or facts.head_dim is None:
        return None
    else:
        heads, size, divided = facts.kv_heads, facts.head_dim + (facts.v_head_dim or facts.head_dim), True
    of_full = CachedLayers(full, heads, size, divided=divided)
    kinds = [of_full, replace(of_full, layers=caching - full, window=facts.sliding_window)]
    index = facts.index_head_dim or 0
    index_bytes = index + index // _INDEX_BLOCK * _INDEX_SCALE_BYTES
    kinds += [CachedLayers(caching, 1, index_bytes, element_bytes=1, divided=False)] if index else []
    return tuple(kind for kind in kinds if kind.layers)


def without_windows(facts: ModelFacts) -> ModelFacts:
    """The facts for a server that keeps the full context in each layer."""
    return replace(facts, sliding_window=None, cached=tuple(replace(kind, window=None) for kind in facts.cached))


def cache_bytes_per_token(facts: ModelFacts, element_bytes: float) -> float | None:
    """Bytes that a token of a short sequence adds to the key-value cache of all layers; None: unknown."""
    kinds = cached_layers(facts)
    if kinds is None:
        return None
    return sum(kind.layers * _entry(kind, 1, element_bytes) / kind.ratio for kind in kinds if kind.tokens is None)


def _entry(layers: CachedLayers, tp: int, element_bytes: float) -> float:
    """Bytes of an entry in one layer on one GPU. Each GPU keeps at least one head."""
    heads = max(1, -(-layers.heads // tp)) if layers.divided else layers.heads
    return heads * layers.size * (element_bytes if layers.element_bytes is None else layers.element_bytes)


def entry_bytes(facts: ModelFacts, split: Split, element_bytes: float) -> float:
    """Bytes of the largest entry of a token in one layer on one GPU; 0: no cache, or its size is unknown."""
    return max((_entry(kind, split.tp, element_bytes) for kind in cached_layers(facts) or ()), default=0.0)


def cache_per_gpu(facts: ModelFacts, split: Split, workload: Workload) -> float | None:
    """The key-value cache of one GPU for the workload; None if the files do not show its size.

    Layers with a sliding window keep at most the window of each sequence, and the tokens of a step. Tensor parallelism
    divides the key-value heads, of which each GPU keeps at least one, but not a latent. Each data-parallel copy serves
    the full number of sequences.
    """
    kinds = cached_layers(facts)
    if kinds is None:
        return None
    held = workload.context * workload.sequences
    total = 0.0
    counts = _allocated(kinds) if workload.window_groups else [kind.layers for kind in kinds]
    for kind, layers in zip(kinds, counts, strict=True):
        tokens = float(held)
        if kind.tokens is not None:
            tokens = kind.tokens * workload.sequences
        elif kind.window is not None:
            tokens = min(held, kind.window * workload.sequences + workload.beyond_windows)
        total += layers * _entry(kind, split.tp, workload.cache_bytes) * tokens / kind.ratio
    return total * stage_share(facts, split.pp)


def _allocated(kinds: Sequence[CachedLayers]) -> list[int]:
    """The layers of each kind, with those that fill up the last group if a server allocates layers in groups."""
    counts = [kind.layers for kind in kinds]
    alike = len({kind.window for kind in kinds}) <= 1
    return counts if alike or any(kind.ratio != 1 or kind.tokens is not None for kind in kinds) else in_groups(counts)


def in_groups(counts: Sequence[int]) -> list[int]:
    """Layers of each kind, filled up to complete groups (_get_kv_cache_groups_uniform_page_size of vLLM).

    A group has as many layers as the rarest kind; if the kinds are about equally frequent, as the most frequent kind.
    """
    size = group_size(counts)
    return [-(-count // size) * size for count in counts]


def group_size(counts: Sequence[int]) -> int:
    least, most = min(counts), max(counts)
    return most if most < least * _ABOUT_AS_MANY else least


def activations(facts: ModelFacts, workload: Workload, element_bytes: int) -> float:
    """Memory of the largest step in addition to weights and cache; the constants have the sources.

    A mixture of experts sends each token to several experts, and keeps two copies of its hidden state per expert.
    """
    hidden, inner = facts.hidden_size or 0, facts.intermediate_size or 0
    experts = 2 * hidden * (facts.experts_per_token or 0)
    per_token = (_FEED_FORWARD * inner + _AROUND_ATTENTION * hidden + experts) * element_bytes
    logits = 0 if facts.encoder else workload.batch_sequences * (facts.vocab or 0) * _LOGIT_BYTES
    return workload.batch_tokens * per_token + logits
