"""What a model's layers keep of a sequence, by the fields of its config: caches of each size, and states.

Sizes of states are those of vLLM's MambaStateShapeCalculator.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any, Final

from controller.domain.model_facts import CachedLayers, States
from controller.model_files.config_fields import ConfigScopes, is_count
from controller.model_files.layer_kinds import Kind, UnknownLayersError, heads_in_group, kinds_of, window_of

MAX_LAYERS: Final = 10_000
# Fields with a number of key-value heads for each layer, or for all. The last is Step-3.5's.
KV_HEADS: Final = (
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num", "num_attention_groups",
)  # fmt: skip
_KV_LISTS: Final = ("num_key_value_heads_per_layer", *KV_HEADS)
_HEAD_LISTS: Final = ("num_attention_heads_per_layer", "num_attention_heads", "num_query_heads", "n_head")
# DeepSeek-V4: the entry of a token also has 64 rotary elements in 16 bits and scales (state_content_bytes of its
# DeepseekV4MLAAttention: 584 bytes for 512 elements); the index has a scale of 4 bytes.
_V4_EXTRA: Final = 72
_V4_INDEX_SCALE: Final = 4
_V4_OVERLAP: Final = 4  # layers with this ratio have an index, and compress windows that overlap
_V4_STATE_BYTES: Final = 4
# Types with two attentions in each layer.
_TWICE: Final = ("longcat_flash",)
_FLOAT32 = "float32"


@dataclass(frozen=True, slots=True)
class Heads:
    """One layer's attention, of most layers of a model."""

    kv_heads: int | None
    key: int | None
    value: int | None  # elements of a head of values; None: as of keys
    latent: int | None = None  # elements of a latent that is kept instead


@dataclass(frozen=True, slots=True)
class Layers:
    """What the layers keep: the fields of `ModelFacts` with these names, and `window` for its `sliding_window`."""

    full: int = 0
    uncached: int = 0
    window: int | None = None  # tokens; None if no layer has a window
    cached: tuple[CachedLayers, ...] = ()
    states: States | None = None
    unknown: str | None = None


def layers_of(config: ConfigScopes, layers: int, model_type: str, heads: Heads) -> Layers:
    """What the layers of a config keep. `unknown` names what cannot be read."""
    if layers > MAX_LAYERS:
        return Layers(layers, unknown=f"{layers} layers")
    try:
        if (ratios := config.value("compress_ratios")) is not None:
            return Layers(layers, window=None, cached=tuple(_compressed(config, ratios, layers)))
        kinds = kinds_of(config, layers, model_type)
        if model_type.startswith(_TWICE):
            return Layers(layers, cached=_twice(layers, heads))
        counted = _counted(config, kinds, _sizes(config, kinds, heads), _size(heads))
    except UnknownLayersError as error:
        return Layers(layers, unknown=str(error))
    keeping = sum(kind in (Kind.STATE, Kind.BOTH) for kind in kinds)
    if not keeping:
        return counted
    try:
        states, unknown = states_of(config, keeping, model_type), None
    except UnknownLayersError as error:
        states, unknown = None, str(error)
    return replace(counted, states=states, unknown=unknown)


def _counted(
    config: ConfigScopes, kinds: Sequence[Kind], sizes: Sequence[tuple[int, int] | None], usual: tuple[int, int] | None
) -> Layers:
    """The layers by kind, and by size if that is not the usual size."""
    windows = _windows(config, kinds)
    caching = [n for n, kind in enumerate(kinds) if kind in (Kind.FULL, Kind.BOTH, Kind.WINDOW) and sizes[n] != (0, 0)]
    windowed = [n for n in caching if windows[n] is not None]
    same_window = len({windows[n] for n in windowed}) <= 1
    cached: tuple[CachedLayers, ...] = ()
    of_each = [(windows[n], sizes[n]) for n in caching]
    if {size for _, size in of_each} - {usual} or not same_window:
        groups = Counter(of_each)
        cached = tuple(
            CachedLayers(count, size[0], size[1], window)
            for (window, size), count in groups.items()
            if size is not None
        )
    full, uncached = len(caching) - len(windowed), len(kinds) - len(caching)
    return Layers(full, uncached, windows[windowed[0]] if windowed else None, cached)


def _windows(config: ConfigScopes, kinds: Sequence[Kind]) -> list[int | None]:
    """The window of each layer; None: the layer keeps everything."""
    each = config.value("sliding_windows", "interleaved_sliding_window")
    if isinstance(each, list) and each:
        given = [size if is_count(size) else None for size in (each[n % len(each)] for n in range(len(kinds)))]
    else:
        given = [window_of(config)] * len(kinds)
    return [size if kind is Kind.WINDOW else None for kind, size in zip(kinds, given, strict=True)]


def _sizes(config: ConfigScopes, kinds: Sequence[Kind], heads: Heads) -> list[tuple[int, int] | None]:
    """Key-value heads of each layer and elements per head; None if unknown, or if a latent is kept instead.

    Raises:
        UnknownLayersError: layers differ in an unknown form.
    """
    if heads.latent is not None:
        return [None] * len(kinds)
    if config.value("per_layer_config") is not None:
        raise UnknownLayersError("per_layer_config")
    windowed, full = _of_windows(config, heads), _of_full(config, heads)
    each = _kv_lists(config, len(kinds))
    sizes: list[tuple[int, int] | None] = []
    for n, kind in enumerate(kinds):
        of_kind = windowed if kind is Kind.WINDOW else full
        size = _size(of_kind if each is None else replace(of_kind, kv_heads=each[n]))
        sizes.append((0, 0) if size is not None and size[0] == 0 else size)
    return sizes


def _size(heads: Heads) -> tuple[int, int] | None:
    """Key-value heads of most layers, and elements per head and token."""
    if heads.latent is not None or heads.kv_heads is None or heads.key is None:
        return None
    return heads.kv_heads, heads.key + (heads.key if heads.value is None else heads.value)


def _of_windows(config: ConfigScopes, heads: Heads) -> Heads:
    """The heads of layers with a window: other heads in MiMo-V2 and Step-3.5."""
    other = config.value("attention_other_setting")
    if isinstance(other, dict) and other.get("attention_type") == "sliding_attention":
        kv_heads, key = other.get("num_attention_groups"), other.get("head_dim")
        if not is_count(kv_heads) or not is_count(key):
            raise UnknownLayersError("attention_other_setting")
        return Heads(int(kv_heads or 0), int(key or 0), None)
    kv_heads, key = config.count("swa_num_key_value_heads"), config.count("swa_head_dim")
    value = config.count("swa_v_head_dim")
    if kv_heads is None and key is None and value is None:
        return heads
    return Heads(kv_heads or heads.kv_heads, key or heads.key, value or (None if key else heads.value))


def _of_full(config: ConfigScopes, heads: Heads) -> Heads:
    """The heads of layers with full attention: larger heads in Gemma 4, and another number where keys are values."""
    key = config.count("global_head_dim")
    kv_heads = config.count("num_global_key_value_heads") if config.flag("attention_k_eq_v") is True else None
    return Heads(kv_heads or heads.kv_heads, key or heads.key, None if key else heads.value)


def _kv_lists(config: ConfigScopes, layers: int) -> list[int] | None:
    """The key-value heads of each layer; None if the config has no number for each."""
    blocks = config.value("block_configs")
    if isinstance(blocks, list):
        heads = config.count("num_attention_heads")
        if heads is None:
            raise UnknownLayersError("block_configs without num_attention_heads")
        groups = [heads_in_group(block) for block in blocks[:layers]]
        return [-(-heads // group) if group else 0 for group in groups]
    lists = (config.value(name) for name in _KV_LISTS)
    each = next((numbers for numbers in lists if isinstance(numbers, list)), None)
    if each is None:
        return None
    if len(each) < layers or not all(is_count(number) or number == 0 for number in each[:layers]):
        raise UnknownLayersError("a list of key-value heads that is not one number for each layer")
    return [int(number) for number in each[:layers]]


def heads_of_all(config: ConfigScopes, *names: str) -> int | None:
    """Attention heads; if layers differ, the greatest common divisor, because a degree of parallelism divides it."""
    for name in (*_HEAD_LISTS, *names):
        value = config.value(name)
        if isinstance(value, list) and value and all(map(is_count, value)):
            return gcd(*value)
    return config.count(*names)


def most_kv_heads(config: ConfigScopes, heads: int | None) -> int | None:
    """The most key-value heads of a layer, by a list or Nemotron-NAS's blocks; None if the config has neither."""
    blocks = config.value("block_configs")
    try:
        if isinstance(blocks, list) and blocks and heads is not None:
            return max(
                (-(-heads // group) for group in map(heads_in_group, blocks[:MAX_LAYERS]) if group), default=None
            )
        each = next((numbers for name in _KV_LISTS if isinstance(numbers := config.value(name), list)), None)
    except UnknownLayersError:
        return None
    return (
        None if each is None else max((int(number) for number in each[:MAX_LAYERS] if is_count(number)), default=None)
    )


def _compressed(config: ConfigScopes, ratios: Any, layers: int) -> list[CachedLayers]:
    """DeepSeek-V4: a window in each layer, and an entry for each `ratio` tokens of the context.

    Tokens that a layer compresses next are kept uncompressed, in 32 bits.
    """
    size, window, index = config.count("head_dim"), config.count("sliding_window"), config.count("index_head_dim")
    if not isinstance(ratios, list) or len(ratios) < layers or size is None or window is None:
        raise UnknownLayersError("compress_ratios without head_dim and sliding_window for each layer")
    counts: Counter[CachedLayers] = Counter()

    def keep(size: int, window: int | None, ratio: int, element_bytes: int | None) -> None:
        counts[CachedLayers(1, 1, size, window, None, ratio, element_bytes, divided=False)] += 1

    for ratio in ratios[:layers]:
        if not (is_count(ratio) or ratio == 0) or isinstance(ratio, bool):
            raise UnknownLayersError(f"{ratio!r:.60} in compress_ratios")
        keep(size + _V4_EXTRA, window, 1, None)
        if ratio <= 1:
            continue
        overlap = 2 if ratio == _V4_OVERLAP else 1
        keep(size + _V4_EXTRA, None, ratio, None)
        keep(2 * overlap * size, overlap * ratio, 1, _V4_STATE_BYTES)
        if ratio == _V4_OVERLAP:
            if index is None:
                raise UnknownLayersError("compress_ratios without index_head_dim")
            keep(index + _V4_INDEX_SCALE, None, ratio, 1)
            keep(2 * overlap * index, overlap * ratio, 1, _V4_STATE_BYTES)
    return [replace(layer, layers=n) for layer, n in counts.items()]


def _twice(layers: int, heads: Heads) -> tuple[CachedLayers, ...]:
    if heads.latent is None:
        raise UnknownLayersError("two attentions in each layer without kv_lora_rank")
    return (CachedLayers(2 * layers, 1, heads.latent, divided=False),)


def states_of(config: ConfigScopes, layers: int, model_type: str) -> States:
    """The states of this number of layers.

    Raises:
        UnknownLayersError: the config has no known form of their size.
    """
    for read in (_kda, _gated_delta, _short_conv, _mamba2, _mamba, _lightning):
        if (states := read(config, layers, model_type)) is not None:
            return states
    raise UnknownLayersError("the size of the state that its layers keep")


def _kda(config: ConfigScopes, layers: int, _model_type: str) -> States | None:
    """Kimi's delta attention; the recurrent state has 32 bits."""
    given = config.value("linear_attn_config")
    if not isinstance(given, dict):
        return None
    heads, size, kernel = (_in(given, name) for name in ("num_heads", "head_dim", "short_conv_kernel_size"))
    if heads is None or size is None or kernel is None:
        return None
    kept = kernel - 1
    return States(layers, 3 * heads * size * kept, recurrent=heads * size * size, kernel=kept, recurrent_dtype=_FLOAT32)


def _gated_delta(config: ConfigScopes, layers: int, _model_type: str) -> States | None:
    """Gated delta nets: Qwen3-Next, Qwen3.5, Olmo hybrid."""
    key_heads, value_heads = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    key, value = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    kernel = config.count("linear_conv_kernel_dim")
    if key_heads is None or value_heads is None or key is None or value is None or kernel is None:
        return None
    conv = (2 * key_heads * key + value_heads * value) * (kernel - 1)
    return States(layers, conv, recurrent=value_heads * value * key, kernel=kernel - 1, recurrent_dtype=_dtype(config))


def _short_conv(config: ConfigScopes, layers: int, model_type: str) -> States | None:
    """LFM2: a convolution alone."""
    kernel = config.count("conv_L_cache")
    if kernel is None:
        return None
    own = ("conv_dim", "hidden_size") if model_type == "lfm2" else ("hidden_size",)
    size = config.count(*own)
    return None if size is None else States(layers, size * (kernel - 1), kernel=kernel - 1)


def _mamba2(config: ConfigScopes, layers: int, model_type: str) -> States | None:
    plain = ("num_heads",) if model_type == "mamba2" else ()  # elsewhere they are of attention
    heads = config.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", *plain)
    state, kernel = config.count("ssm_state_size", "mamba_d_state", "state_size"), _kernel(config)
    if heads is None or state is None or kernel is None:
        return None
    inner = _inner2(config, heads, model_type)
    if inner is None:
        return None
    kept, groups = kernel - 1, config.count("mamba_n_groups", "mamba_ngroups", "n_groups") or 0
    # Only of these vLLM does not keep the recurrent state in the model's own type (NemotronHForCausalLMConfig).
    dtype = _dtype(config) or (_FLOAT32 if model_type.startswith(("nemotron_h", "nemotronh")) else None)
    return States(layers, inner * kept, groups, 2 * state * kept, inner * state, kept, dtype)


def _inner2(config: ConfigScopes, heads: int, model_type: str) -> int | None:
    plain = ("head_dim",) if model_type == "mamba2" else ()
    size = config.count("mamba_head_dim", "mamba_d_head", "mamba_headdim", *plain, "hidden_size_per_head")
    if size is not None:
        return heads * size
    stated = config.count("mamba_d_ssm")
    return stated if stated is not None else _expanded(config)


def _mamba(config: ConfigScopes, layers: int, model_type: str) -> States | None:
    state, kernel = config.count("mamba_d_state", "state_size", "ssm_state_size"), _kernel(config)
    inner = _expanded(config)
    if model_type in ("mamba", "falcon_mamba"):
        inner = config.count("intermediate_size", "d_inner") or inner
    if state is None or kernel is None or inner is None:
        return None
    return States(layers, inner * (kernel - 1), recurrent=inner * state, kernel=kernel - 1)


def _lightning(config: ConfigScopes, layers: int, _model_type: str) -> States | None:
    """Linear attention with a matrix for each head: MiniMax, Ling and Ring 2.5."""
    if config.value("attn_type_list") is None and config.count("layer_group_size") is None:
        return None
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    if heads is None or hidden is None:
        return None
    size = config.count("head_dim") or hidden // heads
    return States(layers, recurrent=heads * size * size)


def _kernel(config: ConfigScopes) -> int | None:
    return config.count("mamba_d_conv", "conv_kernel", "d_conv", "conv_kernel_size")


def _expanded(config: ConfigScopes) -> int | None:
    expand, hidden = config.count("mamba_expand", "expand"), config.count("hidden_size", "d_model")
    return None if expand is None or hidden is None else expand * hidden


def _dtype(config: ConfigScopes) -> str | None:
    return config.word("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def _in(given: Mapping[str, Any], name: str) -> int | None:
    return int(given[name]) if is_count(given.get(name)) else None
