"""How much memory a model takes on each GPU, from what its files say. Pure formulae, in bytes unless they say MiB.

Nothing here knows an engine: what a split costs beyond the model itself (contexts, graphs) is the engines' to add.
"""

from dataclasses import dataclass
from typing import Final

from controller.domain.model_facts import ModelFacts
from controller.domain.splits import Split

MIB: Final = 2**20
MOST_MIB: Final = 2**40

# Safetensors' names of floating point types, which an engine turns into the one that it works in.
_FLOAT_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# The config's names, and those of engines' flags.
DTYPE_BYTES: Final = {
    "float64": 8, "float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2,
}  # fmt: skip
# Where a config does not say how large a token's cache is: the share of the weights that the placement cases allow for
# everything but weights. Guessed, and said to be so in the need's notes.
UNKNOWN_CACHE_SHARE: Final = 0.2
# What a profiling pass of vLLM holds at once, in elements per token of a batch: the gated feed forward's two halves and
# their product (3 x intermediate size); residual, queries, keys, values, attention and output (6 x hidden size). Per
# sequence the logits in 32 bits and a copy of them for sampling. With 8192 tokens and 256 sequences that is 1.27 GiB
# for Llama-3-8B, where vLLM measured 1.26 GiB both with tp 1 and with tp 2, which is why it is not divided
# (https://github.com/vllm-project/vllm/pull/10511).
_FEED_FORWARD: Final = 3
_AROUND_ATTENTION: Final = 6
_LOGIT_BYTES: Final = 8
# Of a sparse layer's index both servers keep a byte for each element of a token's key, and four bytes of scale for each
# 128 of them, whatever the cache's own type (DeepseekV32IndexerCache of vLLM, NSATokenToKVPool of SGLang).
_INDEX_BLOCK: Final = 128
_INDEX_SCALE_BYTES: Final = 4


def mib(size: float) -> int:
    """Bytes as MiB, rounded up; an exbibyte at most, since a config may claim what no 64 bits hold."""
    return min(-(-int(size) // MIB), MOST_MIB)


@dataclass(frozen=True, slots=True)
class Workload:
    """What a model is to serve at once.

    Attributes:
        context: tokens of the longest sequence, prompt and answer together.
        sequences: of that length at the same time.
        cache_bytes: of one element of the key-value cache; that of keys and of values may differ, this is their mean.
        batch_tokens: most that pass through the model in one step.
        batch_sequences: most that one step gives a token to.
        beyond_windows: tokens that a layer with a sliding window holds of all sequences together besides their
            windows, since those of a step come in before the oldest go.
        window_groups: layers with a window take room in groups of as many as there are without one, the last filled up.
    """

    context: int
    sequences: int
    cache_bytes: float
    batch_tokens: int
    batch_sequences: int
    beyond_windows: int = 0
    window_groups: bool = False


def loaded_bytes(facts: ModelFacts, dtype_bytes: int | None) -> int:
    """Bytes of all tensors once loaded: floating ones in the type that the engine works in, packed ones as stored.

    Args:
        facts: of the model.
        dtype_bytes: of that type; None: each as it is stored.
    """
    if dtype_bytes is None:
        return facts.weight_bytes
    floats = {t: n for t, n in facts.dtypes.items() if t in _FLOAT_BYTES}
    return facts.weight_bytes + sum(n * dtype_bytes // _FLOAT_BYTES[t] - n for t, n in floats.items())


def weights_per_gpu(facts: ModelFacts, split: Split, total_bytes: int) -> int:
    """Weights on the GPU that holds most.

    Tensor parallelism divides every matrix, embeddings and experts too. The pipeline's stages take whole layers, the
    largest `ceil(layers / pp)`; the first has the embeddings and the last the head, which is as large. Not divided are
    the projections into the latent of multi-head latent attention and, where there are fewer heads of keys and values
    than GPUs, those heads (Megatron-LM, arXiv:1909.08053; vLLM's `ReplicatedLinear` and `QKVParallelLinear`).
    """
    element = total_bytes / facts.parameters if facts.parameters else 2.0
    stage, hidden = _stage_share(facts, split.pp), facts.hidden_size or 0
    embeddings = min((facts.vocab or 0) * hidden * element, total_bytes / 2)
    staged = total_bytes if split.pp == 1 else (total_bytes - embeddings) * stage + embeddings
    kept, pieces = 0.0, split.tp  # what is not divided by tp, and into how many pieces it is
    if facts.kv_lora_rank is not None:
        kept, pieces = hidden * (facts.kv_lora_rank + (facts.qk_rope_head_dim or 0)) * element, 1
    elif facts.kv_heads is not None and facts.kv_heads < split.tp:
        kept, pieces = 2 * hidden * (facts.head_dim or 0) * facts.kv_heads * element, facts.kv_heads
    kept *= (facts.layers or 0) * stage
    return int((staged - kept) / split.tp + kept / pieces)


def _stage_share(facts: ModelFacts, pp: int) -> float:
    """The share of the layers that the pipeline's largest stage takes."""
    return 1 / pp if not facts.layers else -(-facts.layers // pp) / facts.layers


def cache_bytes_per_token(facts: ModelFacts, element_bytes: float) -> float | None:
    """Bytes that one token adds to the key-value cache of all layers while its sequence is short; None: not known.

    Multi-head latent attention keeps one latent and one rotary key (DeepSeek-V2, arXiv:2405.04434, section 2.1):
    `layers x (kv_lora_rank + qk_rope_head_dim)`, and sparse attention an index besides. Else a key and a value for each
    head of keys and values (grouped query attention, arXiv:2305.13245): `layers x kv_heads x (head_dim + v_head_dim)`.
    """
    per_layer = _elements_per_layer(facts, facts.kv_heads)
    if facts.encoder:
        return 0.0
    if per_layer is None or facts.layers is None:
        return None
    return (facts.layers - facts.uncached_layers) * (per_layer * element_bytes + _index_bytes(facts))


def _index_bytes(facts: ModelFacts) -> int:
    """Of one token and layer."""
    key = facts.index_head_dim or 0
    return key + key // _INDEX_BLOCK * _INDEX_SCALE_BYTES


def _elements_per_layer(facts: ModelFacts, kv_heads: int | None) -> int | None:
    if facts.kv_lora_rank is not None:
        return facts.kv_lora_rank + (facts.qk_rope_head_dim or 0)
    if kv_heads is None or facts.head_dim is None:
        return None
    return kv_heads * (facts.head_dim + (facts.v_head_dim or facts.head_dim))


def cache_per_gpu(facts: ModelFacts, split: Split, workload: Workload) -> float | None:
    """The key-value cache that one GPU keeps for the workload; None: the files do not say enough.

    Layers that look through a sliding window keep no more than the window of each sequence, and the tokens of a step.
    Tensor parallelism divides the heads of keys and values, of which each GPU has at least one; a latent is kept by
    each GPU whole. Each data parallel copy of the model serves as many sequences.
    """
    if facts.encoder:
        return 0.0
    heads = None if facts.kv_heads is None else max(1, -(-facts.kv_heads // split.tp))
    per_layer = _elements_per_layer(facts, heads)
    if per_layer is None or facts.layers is None:
        return None
    caching = facts.layers - facts.uncached_layers
    full = caching if facts.full_layers is None or facts.sliding_window is None else facts.full_layers
    held = workload.context * workload.sequences
    windows = (facts.sliding_window or workload.context) * workload.sequences
    windowed = caching - full
    if workload.window_groups and 0 < full < windowed:
        windowed = -(-windowed // full) * full
    tokens = full * held + windowed * min(held, windows + workload.beyond_windows)
    per_token = per_layer * workload.cache_bytes + _index_bytes(facts)
    return tokens * per_token * _stage_share(facts, split.pp)


def activations(facts: ModelFacts, workload: Workload, element_bytes: int) -> float:
    """What the largest step of the model holds besides weights and cache; see the constants for where it comes from.

    Each token of a mixture of experts is sent to several of them, so its hidden state is held as often, twice.
    """
    hidden, inner = facts.hidden_size or 0, facts.intermediate_size or 0
    experts = 2 * hidden * (facts.experts_per_token or 0)
    per_token = (_FEED_FORWARD * inner + _AROUND_ATTENTION * hidden + experts) * element_bytes
    logits = 0 if facts.encoder else workload.batch_sequences * (facts.vocab or 0) * _LOGIT_BYTES
    return workload.batch_tokens * per_token + logits
