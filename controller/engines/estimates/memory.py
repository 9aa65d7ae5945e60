"""Memory of a model on each GPU, from its files. Pure formulae, in bytes unless named MiB.

The formulae do not depend on an engine. Engines add what a split costs beyond the model, such as contexts and graphs.
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
# For configs that do not give the size of a token's cache: the share of the weights that the placement cases allow for
# everything but weights. A guess, and the need's notes say so.
UNKNOWN_CACHE_SHARE: Final = 0.2
# What a profiling pass of vLLM holds at once, in elements per token of a batch: the gated feed forward's two halves and
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
    """The load that an engine serves at once."""

    context: int  # tokens of the longest sequence, prompt and answer together
    sequences: int  # number of concurrent sequences of that length
    cache_bytes: float  # bytes of one element of the key-value cache; the mean where keys and values differ
    batch_tokens: int  # most tokens that pass through the model in one step
    batch_sequences: int  # most sequences that get a token in one step
    # tokens that a layer with a sliding window holds besides the windows, over all sequences: the tokens of a step
    # enter before the oldest leave
    beyond_windows: int = 0
    window_groups: bool = False  # where some layers have a window, layers are allocated in groups; see `in_groups`


def loaded_bytes(facts: ModelFacts, dtype_bytes: int | None) -> int:
    """Bytes of all tensors once loaded: floating ones in the engine's working type, packed ones as stored.

    Args:
        facts: of the model.
        dtype_bytes: bytes of the working type; None: each tensor as it is stored.
    """
    if dtype_bytes is None:
        return facts.weight_bytes
    floats = {t: n for t, n in facts.dtypes.items() if t in _FLOAT_BYTES}
    return facts.weight_bytes + sum(n * dtype_bytes // _FLOAT_BYTES[t] - n for t, n in floats.items())


def weights_per_gpu(facts: ModelFacts, split: Split, total_bytes: int) -> int:
    """Weights on the GPU that holds most.

    Tensor parallelism divides every matrix, also embeddings and experts. Pipeline stages take whole layers, the largest
    `ceil(layers / pp)`. The first stage has the embeddings, and the last has the head of the same size. Two parts are
    not divided: the projections into the latent of multi-head latent attention, and key-value heads where there are
    fewer than GPUs (Megatron-LM, arXiv:1909.08053; vLLM's `ReplicatedLinear` and `QKVParallelLinear`).
    """
    element = total_bytes / facts.parameters if facts.parameters else 2.0
    stage, hidden = stage_share(facts, split.pp), facts.hidden_size or 0
    embeddings = min((facts.vocab or 0) * hidden * element, total_bytes / 2)
    staged = total_bytes if split.pp == 1 else (total_bytes - embeddings) * stage + embeddings
    kept, pieces = 0.0, split.tp  # bytes not divided by tp, and their own divisor
    if facts.kv_lora_rank is not None:
        kept, pieces = hidden * (facts.kv_lora_rank + (facts.qk_rope_head_dim or 0)) * element, 1
    elif facts.kv_heads is not None and facts.kv_heads < split.tp:
        kept, pieces = 2 * hidden * (facts.head_dim or 0) * facts.kv_heads * element, facts.kv_heads
    kept *= (facts.layers or 0) * stage
    return int((staged - kept) / split.tp + kept / pieces)


def stage_share(facts: ModelFacts, pp: int) -> float:
    """The share of the layers on the largest pipeline stage."""
    return 1 / pp if not facts.layers else -(-facts.layers // pp) / facts.layers


def cached_layers(facts: ModelFacts) -> tuple[CachedLayers, ...] | None:
    """The layers with a cache; None: the files do not say enough.

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
    found = [of_full, replace(of_full, layers=caching - full, window=facts.sliding_window)]
    index = facts.index_head_dim or 0
    index_bytes = index + index // _INDEX_BLOCK * _INDEX_SCALE_BYTES
    found += [CachedLayers(caching, 1, index_bytes, element_bytes=1, divided=False)] if index else []
    return tuple(one for one in found if one.layers)


def without_windows(facts: ModelFacts) -> ModelFacts:
    """The facts for a server that keeps the whole context in each layer."""
    return replace(facts, sliding_window=None, cached=tuple(replace(one, window=None) for one in facts.cached))


def cache_bytes_per_token(facts: ModelFacts, element_bytes: float) -> float | None:
    """Bytes that one token of a short sequence adds to the key-value cache of all layers; None: unknown."""
    found = cached_layers(facts)
    if found is None:
        return None
    return sum(one.layers * _entry(one, 1, element_bytes) / one.ratio for one in found if one.tokens is None)


def _entry(layers: CachedLayers, tp: int, element_bytes: float) -> float:
    """Bytes of one entry in one layer on one GPU. Each GPU keeps at least one of the heads."""
    heads = max(1, -(-layers.heads // tp)) if layers.divided else layers.heads
    return heads * layers.size * (element_bytes if layers.element_bytes is None else layers.element_bytes)


def entry_bytes(facts: ModelFacts, split: Split, element_bytes: float) -> float:
    """Bytes of the largest entry of a token in one layer on one GPU; 0: there is no cache, or its size is unknown."""
    return max((_entry(one, split.tp, element_bytes) for one in cached_layers(facts) or ()), default=0.0)


def cache_per_gpu(facts: ModelFacts, split: Split, workload: Workload) -> float | None:
    """The key-value cache of one GPU for the workload; None: the files do not say enough.

    Layers with a sliding window keep at most the window of each sequence, and the tokens of a step. Tensor parallelism
    divides the key-value heads, of which each GPU keeps at least one. A latent is kept whole by each GPU. Each data
    parallel copy serves the full number of sequences.
    """
    found = cached_layers(facts)
    if found is None:
        return None
    held = workload.context * workload.sequences
    total = 0.0
    for one, layers in zip(
        found, _allocated(found) if workload.window_groups else [one.layers for one in found], strict=True
    ):
        tokens = float(held)
        if one.tokens is not None:
            tokens = one.tokens * workload.sequences
        elif one.window is not None:
            tokens = min(held, one.window * workload.sequences + workload.beyond_windows)
        total += layers * _entry(one, split.tp, workload.cache_bytes) * tokens / one.ratio
    return total * stage_share(facts, split.pp)


def _allocated(found: Sequence[CachedLayers]) -> list[int]:
    """The layers of each kind with those that fill up the last group, where a server allocates layers in groups."""
    alike = len({one.window for one in found}) <= 1
    if alike or any(one.ratio != 1 or one.tokens is not None for one in found):
        return [one.layers for one in found]
    return in_groups([one.layers for one in found])


def in_groups(counts: Sequence[int]) -> list[int]:
    """Layers of each kind, filled up to whole groups (_get_kv_cache_groups_uniform_page_size of vLLM).

    A group has as many layers as the rarest kind; where the kinds are about as frequent, as the most frequent one.
    """
    size = group_size(counts)
    return [-(-count // size) * size for count in counts]


def group_size(counts: Sequence[int]) -> int:
    """Layers of a group, by the layers of each kind."""
    least, most = min(counts), max(counts)
    return most if most < least * _ABOUT_AS_MANY else least


def activations(facts: ModelFacts, workload: Workload, element_bytes: int) -> float:
    """Memory of the largest step in addition to weights and cache. The constants say where the figures come from.

    A mixture of experts sends each token to several experts, and keeps two copies of its hidden state per expert.
    """
    hidden, inner = facts.hidden_size or 0, facts.intermediate_size or 0
    experts = 2 * hidden * (facts.experts_per_token or 0)
    per_token = (_FEED_FORWARD * inner + _AROUND_ATTENTION * hidden + experts) * element_bytes
    logits = 0 if facts.encoder else workload.batch_sequences * (facts.vocab or 0) * _LOGIT_BYTES
    return workload.batch_tokens * per_token + logits
