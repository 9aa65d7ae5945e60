"""Memory of the states that layers keep for each running sequence, by the rules of each server; in bytes.

Layers of Mamba, linear attention or a short convolution keep a state instead of tokens (`States`).
"""

from dataclasses import dataclass
from math import ceil
from typing import Final

from controller.domain.model_facts import ModelFacts, States
from controller.domain.splits import Split
from controller.engines.estimates.memory import (
    Workload,
    cache_per_gpu,
    cached_layers,
    entry_bytes,
    group_size,
    stage_share,
)

_FLOAT: Final = 4
# vLLM's blocks: tokens of a page of attention are a multiple of the kernels' (16; 128 for latents). The state of a
# running sequence takes one block, or with prefix caching two (MambaSpec, mode `align`).
BLOCK_TOKENS: Final = 16
LATENT_BLOCK_TOKENS: Final = 128
# SGLang's pool: slots for each request while its cache of prefixes is on (MAMBA_CACHE_SIZE_MAX_RUNNING_REQUESTS_RATIO,
# and two for the buffer of its overlapping scheduler), and one that is never used.
SGLANG_SLOTS: Final = 5
SGLANG_SHARE: Final = 0.9  # of states to keys and values, by default (mamba_full_memory_ratio)


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache of one GPU."""

    size: float  # bytes
    # bytes of a block over the layers of a group, of which each running sequence needs one; 0: no layer keeps a state,
    # so blocks do not bound sequences
    block: int = 0


@dataclass(frozen=True, slots=True)
class StateRules:
    """How vLLM keeps states, by the spec's flags."""

    conv_bytes: int  # of an element
    recurrent_bytes: int  # of an element
    each: int | None = 1  # blocks of a running sequence in each group; None: as many as of attention
    speculative: int = 0  # tokens that are drafted at once, with a state each
    block_tokens: int = BLOCK_TOKENS  # minimum
    sequences: int = 0  # the spec's limit, which is also the minimum of blocks; 0: not stated


def state_bytes(states: States, tp: int, conv_bytes: int, recurrent_bytes: int, speculative: int = 0) -> int:
    """Bytes of one layer's state on one GPU. Tensor parallelism divides it, but no group of a convolution's inputs."""
    groups = states.groups if states.groups % tp == 0 else max(states.groups, tp)
    conv = (states.conv + groups * states.group_conv) / tp
    if states.kernel:
        conv = conv / states.kernel * (states.kernel + speculative)
    return ceil(conv) * conv_bytes + ceil(states.recurrent / tp) * recurrent_bytes


def paged_cache(facts: ModelFacts, split: Split, workload: Workload, rules: StateRules) -> Cache | None:
    """The cache of vLLM for layers with states; None if the files do not show its size.

    A block holds one state, or the tokens of attention that take at least as much. Layers are allocated in groups
    (`in_groups`), and a block spans the layers of a group. One block is never used.
    """
    states, attention = facts.states, cached_layers(facts)
    if states is None or attention is None:
        return None
    state = state_bytes(states, split.tp, rules.conv_bytes, rules.recurrent_bytes, rules.speculative)
    entry = entry_bytes(facts, split, workload.cache_bytes)
    least = max(rules.block_tokens, LATENT_BLOCK_TOKENS if facts.kv_lora_rank is not None else BLOCK_TOKENS)
    tokens = least * max(1, ceil(state / (least * entry))) if entry else 0
    counts = [states.layers, *(kind.layers for kind in attention)]
    size = group_size(counts)
    page = max(state, tokens * entry)
    block = ceil(page * ceil(size * stage_share(facts, split.pp)))
    of_context = ceil(workload.context / tokens) if tokens else 1
    each = of_context if rules.each is None else rules.each
    blocks = ceil(states.layers / size) * (each + rules.speculative) * workload.sequences
    for kind in attention:
        kept = of_context * workload.sequences
        if kind.window is not None:
            windows = (ceil(kind.window / tokens) + 1) * workload.sequences
            kept = min(kept, windows + ceil(workload.beyond_windows / tokens))
        blocks += ceil(kind.layers / size) * kept
    return Cache(max(blocks + 1, rules.sequences) * block, block)


def pooled_cache(
    facts: ModelFacts, split: Split, workload: Workload, recurrent_bytes: int, slots: int, share: float | None
) -> float | None:
    """The cache of SGLang for layers with states: a pool of states in addition to keys and values; None: unknown.

    `recurrent_bytes`: of an element of a recurrent state; a convolution's has 16 bits. `share`: ratio of the pool's
    memory to that of keys and values; None: the pool has exactly `slots` slots.
    """
    states, cache = facts.states, cache_per_gpu(facts, split, workload)
    if states is None or cache is None:
        return None
    each = state_bytes(states, split.tp, 2, recurrent_bytes) * states.layers * stage_share(facts, split.pp)
    pool = (slots + 1) * each
    if share is None:
        return cache + pool
    return max(cache * (1 + share), pool * (1 + share) / share)


def slot_states(facts: ModelFacts, slots: int, gpus: int) -> float:
    """The states of llama-server on the GPU that holds most, in 32 bits (n_embd_r and n_embd_s, llama-hparams.cpp)."""
    if facts.states is None:
        return 0.0
    each = state_bytes(facts.states, 1, _FLOAT, _FLOAT)
    return each * facts.states.layers * slots * stage_share(facts, gpus)
