"""Reads a model in GGUF files: its weights, its fields, and what its layers keep.

Caches and states of layers are those of llama-hparams.cpp and llama-memory-*.cpp.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gguf.constants import Keys

from controller.domain.model_facts import CachedLayers, ModelFacts, States
from controller.model_files.config_fields import is_count, is_word
from controller.model_files.defaults import ENCODERS, FULL_ATTENTION_PERIOD
from controller.model_files.files import MetadataError, ModelFiles, refuse_pointer, where
from controller.model_files.gguf_header import ArrayLength, GgufHeader, Value, read_header

MAX_PARTS: Final = 1024
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<parts>\d{5})\.gguf")
_BLOCK: Final = re.compile(r"blk\.(\d{1,6})\.")
_SUFFIX: Final = ".gguf"
_MAX_LAYERS: Final = 10_000
# Architectures of which all layers keep a state: without attention, and in addition to it.
_STATES_ALONE: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_STATES_BESIDES: Final = frozenset({"falcon-h1"})
# Of these a layer without key-value heads keeps a state only if it has no feed forward either.
_STATE_OR_FEED_FORWARD: Final = ("nemotron_h",)
# Intervals of layers with attention, for files without a field for it.
_INTERVALS: Final[Mapping[str, int]] = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4}
_TOKEN_SHIFTS: Final = 2
_KDA_KERNEL: Final = 4


def read_gguf(files: ModelFiles, name: str, to_host: Sequence[Mapping[str, Any]] | None = None) -> ModelFacts:
    """Reads a model of one file, or of all parts if `name` is one of several.

    Args:
        files: of the model's folder.
        name: of its first file.
        to_host: the rules of `by_layer`; None: layers are not measured.

    Raises:
        MetadataError: retryable if a file is missing, terminal if one is corrupt or not a model; names the file.
    """
    headers = _headers(files, name)
    values = headers[0].values
    kind = values.get(Keys.General.TYPE, "model")
    if kind != "model":
        raise MetadataError(f"{where(files, name)}: type is {kind!r}, must be 'model'", retryable=False)
    facts = _with_values(_of_tensors(files, name, headers), values)
    return facts if to_host is None else by_layer(facts, [h.tensors for h in headers], to_host)


def by_layer(
    facts: ModelFacts, headers: Sequence[Mapping[str, int]], to_host: Sequence[Mapping[str, Any]]
) -> ModelFacts:
    """Adds the bytes of each layer, and those that stay in the host's memory.

    Args:
        facts: of the model.
        headers: bytes of each tensor by name, of each file.
        to_host: rules: a `pattern` to search in tensors' names, as llama.cpp's loader does, and optionally `layers`,
            the number of the first layers to which it applies.
    """
    layers = facts.layers or 0
    of_layers, on_hosts, other = [0] * layers, [0] * layers, 0
    rules = [(re.compile(rule["pattern"]), rule.get("layers")) for rule in to_host]
    for name, size in (item for header in headers for item in header.items()):
        block = _BLOCK.match(name)
        layer = int(block[1]) if block is not None else None
        on_host = any(
            pattern.search(name) and (first is None or (layer is not None and layer < first))
            for pattern, first in rules
        )
        if layer is None or layer >= layers:
            other += size * on_host
            continue
        of_layers[layer] += size
        on_hosts[layer] += size * on_host
    return replace(facts, layer_bytes=tuple(of_layers), host_layer_bytes=tuple(on_hosts), host_other_bytes=other)


def gguf_bytes(files: ModelFiles, name: str) -> int:
    """Bytes of the tensors of any type of file, such as an adapter. Raises `MetadataError` as `read_gguf`."""
    return _of_tensors(files, name, _headers(files, name)).weight_bytes


def only_model(files: ModelFiles) -> str | None:
    """The first file of the only GGUF model in the folder; None if there is none.

    Raises:
        MetadataError: terminal, if there are several.
    """
    models = sorted(n for n in files.sizes if n.endswith(_SUFFIX) and not n.startswith("mmproj"))
    first = [n for n in models if (part := _PART.fullmatch(n)) is None or int(part["number"]) == 1]
    if len(first) > 1:
        raise MetadataError(
            f"{files.name} holds several GGUF models ({', '.join(n[:80] for n in first[:4])} ...); name one of them as"
            " model: gguf:/file",
            retryable=False,
        )
    return first[0] if first else None


def _headers(files: ModelFiles, name: str) -> list[GgufHeader]:
    part = _PART.fullmatch(name)
    names = [name]
    if part is not None:
        parts = int(part["parts"])
        if parts > MAX_PARTS:
            raise MetadataError(f"{where(files, name)} is one of {parts} parts, more than {MAX_PARTS}", retryable=False)
        names = [f"{part['stem']}-{n:05}-of-{parts:05}{_SUFFIX}" for n in range(1, parts + 1)]
    for each in names:
        if each not in files.sizes:
            raise MetadataError(f"{where(files, each)} is not there (yet)", retryable=True)
        refuse_pointer(files, each)
    return [read_header(files, each) for each in names]


def _of_tensors(files: ModelFiles, name: str, headers: list[GgufHeader]) -> ModelFacts:
    dtypes: Counter[str] = Counter()
    for header in headers:
        dtypes.update(header.dtypes)
    if not dtypes.total():
        raise MetadataError(f"{where(files, name)} holds no tensors; replace the file", retryable=False)
    parameters = sum(header.parameters for header in headers)
    return ModelFacts("gguf", dtypes.total(), dict(dtypes), parameters, revision=files.revision)


def _with_values(facts: ModelFacts, values: Mapping[str, Value]) -> ModelFacts:
    stated = values.get(Keys.General.ARCHITECTURE)
    arch = stated if isinstance(stated, str) and is_word(stated) else ""
    fields = _Fields(arch, values)
    count = fields.count
    heads, hidden = count(Keys.Attention.HEAD_COUNT), count(Keys.LLM.EMBEDDING_LENGTH)
    # Files from before llama.cpp cached latents lack these keys, so it caches complete heads for them.
    latent = count(Keys.Attention.KEY_LENGTH_MLA) is not None
    head_dim = count(Keys.Attention.KEY_LENGTH_MLA, Keys.Attention.KEY_LENGTH)
    v_head_dim = count(Keys.Attention.VALUE_LENGTH_MLA, Keys.Attention.VALUE_LENGTH)
    if head_dim is None and heads and hidden:
        head_dim = hidden // heads or None
    tokens = values.get(Keys.Tokenizer.LIST)
    facts = replace(
        facts,
        architectures=(arch,) if arch else (),
        model_type=arch,
        hidden_size=hidden,
        intermediate_size=count(Keys.LLM.FEED_FORWARD_LENGTH),
        heads=heads,
        kv_heads=count(Keys.Attention.HEAD_COUNT_KV) or heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim if v_head_dim != head_dim else None,
        kv_lora_rank=count(Keys.Attention.KV_LORA_RANK) if latent else None,
        qk_rope_head_dim=count(Keys.Rope.DIMENSION_COUNT) if latent else None,
        vocab=count(Keys.LLM.VOCAB_SIZE) or (tokens.items if isinstance(tokens, ArrayLength) else None),
        context_length=count(Keys.LLM.CONTEXT_LENGTH),
        experts=count(Keys.LLM.EXPERT_COUNT),
        experts_per_token=count(Keys.LLM.EXPERT_USED_COUNT),
        encoder=arch in ENCODERS or fields.value(Keys.Attention.CAUSAL) is False,
    )
    layers = count(Keys.LLM.BLOCK_COUNT)
    return facts if layers is None else _with_layers(facts, layers, fields)


def _with_layers(facts: ModelFacts, layers: int, fields: "_Fields") -> ModelFacts:
    """Adds the layers by kind, and by size where that differs."""
    facts, arch = replace(facts, layers=layers), fields.arch
    if layers > _MAX_LAYERS:
        return replace(facts, unknown=f"{layers} layers")
    kv_heads = _each(fields.value(Keys.Attention.HEAD_COUNT_KV), layers, facts.kv_heads)
    stateful = _stateful(fields, layers, arch, kv_heads)
    # A layer with a state that may have a cache too counts with both.
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
        self.arch, self._values = arch, values

    def value(self, key: str) -> Value:
        return self._values.get(key.format(arch=self.arch))

    def count(self, *keys: str) -> int | None:
        """The first number above zero under one of these keys; the largest if there is one for each layer."""
        for key in keys:
            value = self.value(key)
            if isinstance(value, tuple):
                value = max((n for n in value if is_count(n)), default=None)
            if isinstance(value, int) and is_count(value):
                return value
        return None


def _each(value: Value, layers: int, usual: int | None) -> list[int | None]:
    if isinstance(value, tuple) and len(value) == layers:
        return [int(n) if isinstance(n, int) and (is_count(n) or n == 0) else usual for n in value]
    return [usual] * layers


def _stateful(fields: _Fields, layers: int, arch: str, kv_heads: list[int | None]) -> list[bool]:
    """The layers that keep a state. If a file has states but not their layers, all count, which is never too few."""
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
    """The interval of layers with attention among layers with a state; None for other architectures."""
    return fields.count(Keys.LLM.FULL_ATTENTION_INTERVAL) or _INTERVALS.get(arch)


def _windowed(fields: _Fields, layers: int, arch: str) -> list[bool]:
    if fields.count(Keys.Attention.SLIDING_WINDOW) is None:
        return [False] * layers
    pattern = fields.value(Keys.Attention.SLIDING_WINDOW_PATTERN)
    if isinstance(pattern, tuple) and len(pattern) == layers:
        return list(map(bool, pattern))
    # Files of other types have a window that llama.cpp does not use.
    every = pattern if isinstance(pattern, int) and is_count(pattern) else FULL_ATTENTION_PERIOD.get(arch)
    return [False] * layers if every is None else [(n + 1) % every != 0 for n in range(layers)]


def _size(facts: ModelFacts, fields: _Fields, heads: int | None, *, windowed: bool) -> tuple[int, int] | None:
    key, value = facts.head_dim, facts.v_head_dim or facts.head_dim
    if windowed:
        key = fields.count(Keys.Attention.KEY_LENGTH_SWA) or key
        value = fields.count(Keys.Attention.VALUE_LENGTH_SWA) or value
    return None if heads is None or key is None or value is None else (heads, key + value)


def _states(fields: _Fields, facts: ModelFacts, layers: int) -> States | None:
    """The states of these layers (n_embd_r and n_embd_s); None if there are none, or the file lacks their size."""
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
