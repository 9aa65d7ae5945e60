"""What the layers of a GGUF file keep: caches by size, and states (llama-hparams.cpp and llama-memory-*.cpp)."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from gguf.constants import Keys

from controller.domain.model_facts import CachedLayers, ModelFacts, States
from controller.model_files.config_fields import is_count
from controller.model_files.defaults import FULL_ATTENTION_PERIOD
from controller.model_files.gguf_header import Value

_MAX_LAYERS: Final = 10_000
# Architectures of which all layers keep a state: without attention, and besides it.
_STATES_ALONE: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_STATES_BESIDES: Final = frozenset({"falcon-h1"})
# Of these a layer without key-value heads keeps a state only if it has no feed forward either.
_STATE_OR_FEED_FORWARD: Final = ("nemotron_h",)
# Every so many layers have attention in files without a field for it.
_INTERVALS: Final[Mapping[str, int]] = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
_TOKEN_SHIFTS: Final = 2
_KDA_KERNEL: Final = 4


def with_layers(facts: ModelFacts, layers: int, arch: str, values: Mapping[str, Value]) -> ModelFacts:
    """Adds the layers by kind, and by size where that differs."""
    facts = replace(facts, layers=layers)
    if layers > _MAX_LAYERS:
        return replace(facts, unknown=f"{layers} layers")
    fields = _Fields(arch, values)
    kv_heads = _each(fields.value(Keys.Attention.HEAD_COUNT_KV), layers, facts.kv_heads)
    stateful = _stateful(fields, layers, arch, kv_heads)
    # Where it is not sure that a layer with a state has no cache, it counts with both.
    alone = arch in _STATES_ALONE or _interval(fields, arch) is not None
    shared = fields.count(Keys.Attention.SHARED_KV_LAYERS) or 0  # the last layers use the cache of earlier ones
    shared = shared if shared < layers else 0
    caching = [n for n in range(layers) if kv_heads[n] != 0 and not (stateful[n] and alone) and n < layers - shared]
    windowed = _windowed(fields, layers, arch)
    sizes = {n: _size(facts, fields, kv_heads[n], windowed=windowed[n]) for n in caching}
    window = fields.count(Keys.Attention.SLIDING_WINDOW)
    cached: tuple[CachedLayers, ...] = ()
    if facts.kv_lora_rank is None and set(sizes.values()) - {_size(facts, fields, facts.kv_heads, windowed=False)}:
        groups = Counter((windowed[n], size) for n, size in sizes.items() if size is not None)
        cached = tuple(
            CachedLayers(n, heads, size, window if narrow else None) for (narrow, (heads, size)), n in groups.items()
        )
    full = sum(not windowed[n] for n in caching)
    states = _states(fields, facts, sum(stateful))
    return replace(
        facts,
        full_layers=full,
        uncached_layers=layers - len(caching),
        sliding_window=window if full < len(caching) else None,
        cached=cached,
        states=states,
        unknown="the size of the state that its layers keep" if any(stateful) and states is None else None,
    )


class _Fields:
    """The values of one architecture."""

    def __init__(self, arch: str, values: Mapping[str, Value]) -> None:
        self._arch, self._values = arch, values

    def value(self, key: str) -> Value:
        return self._values.get(key.format(arch=self._arch))

    def count(self, key: str) -> int | None:
        """A number above zero; the largest where there is one for each layer."""
        value = self.value(key)
        if isinstance(value, tuple):
            value = max((n for n in value if is_count(n)), default=None)
        return value if isinstance(value, int) and is_count(value) else None


def _each(value: Value, layers: int, usual: int | None) -> list[int | None]:
    if isinstance(value, tuple) and len(value) == layers:
        return [int(one) if isinstance(one, int) and (is_count(one) or one == 0) else usual for one in value]
    return [usual] * layers


def _stateful(fields: _Fields, layers: int, arch: str, kv_heads: list[int | None]) -> list[bool]:
    """Which layers keep a state. Where the file has states and does not say which, all: that is never too few."""
    if arch in _STATES_ALONE or arch in _STATES_BESIDES:
        return [True] * layers
    if (every := _interval(fields, arch)) is not None:
        return [(n + 1) % every != 0 for n in range(layers)]
    keys = (Keys.SSM.STATE_SIZE, Keys.ShortConv.L_CACHE, Keys.KDA.HEAD_DIM, Keys.WKV.HEAD_SIZE)
    if 0 in kv_heads:
        if not any(fields.count(key) for key in keys):
            return [False] * layers  # Nemotron-NAS: layers without attention
        forward = _each(fields.value(Keys.LLM.FEED_FORWARD_LENGTH), layers, None)
        either = arch.startswith(_STATE_OR_FEED_FORWARD)
        return [heads == 0 and not (either and forward[n]) for n, heads in enumerate(kv_heads)]
    return [any(fields.count(key) for key in keys)] * layers


def _interval(fields: _Fields, arch: str) -> int | None:
    """Every so many layers have attention, and the others a state; None: the architecture is not so."""
    return fields.count(Keys.LLM.FULL_ATTENTION_INTERVAL) or _INTERVALS.get(arch)


def _windowed(fields: _Fields, layers: int, arch: str) -> list[bool]:
    if fields.count(Keys.Attention.SLIDING_WINDOW) is None:
        return [False] * layers
    pattern = fields.value(Keys.Attention.SLIDING_WINDOW_PATTERN)
    if isinstance(pattern, tuple) and len(pattern) == layers:
        return [bool(one) for one in pattern]
    # Other types have a window in their files that llama.cpp does not use.
    every = pattern if isinstance(pattern, int) and is_count(pattern) else FULL_ATTENTION_PERIOD.get(arch)
    return [False] * layers if every is None else [(n + 1) % every != 0 for n in range(layers)]


def _size(facts: ModelFacts, fields: _Fields, heads: int | None, *, windowed: bool) -> tuple[int, int] | None:
    """Key-value heads of a layer and what one keeps of a token."""
    key, value = facts.head_dim, facts.v_head_dim or facts.head_dim
    if windowed:
        key = fields.count(Keys.Attention.KEY_LENGTH_SWA) or key
        value = fields.count(Keys.Attention.VALUE_LENGTH_SWA) or value
    return None if heads is None or key is None or value is None else (heads, key + value)


def _states(fields: _Fields, facts: ModelFacts, layers: int) -> States | None:
    """The states of so many layers (n_embd_r and n_embd_s); None: there are none, or their size is not in the file."""
    hidden, kernel = facts.hidden_size or 0, fields.count(Keys.SSM.CONV_KERNEL)
    if not layers:
        return None
    if (head := fields.count(Keys.WKV.HEAD_SIZE)) is not None:
        shifts = fields.count(Keys.LLM.TOKEN_SHIFT_COUNT) or _TOKEN_SHIFTS
        return States(layers, shifts * hidden, recurrent=hidden * head)
    if (cache := fields.count(Keys.ShortConv.L_CACHE)) is not None:
        return States(layers, hidden * (cache - 1), kernel=cache - 1)
    if (head := fields.count(Keys.KDA.HEAD_DIM)) is not None and facts.heads is not None:
        kept = (kernel or _KDA_KERNEL) - 1
        return States(layers, 3 * facts.heads * head * kept, recurrent=facts.heads * head * head, kernel=kept)
    inner, state = fields.count(Keys.SSM.INNER_SIZE), fields.count(Keys.SSM.STATE_SIZE)
    if inner is None or state is None or kernel is None:
        return None
    groups = fields.count(Keys.SSM.GROUP_COUNT) or 0
    return States(layers, (kernel - 1) * inner, groups, 2 * state * (kernel - 1), inner * state, kernel - 1)
