"""The kind of each layer of a config: what it keeps of a sequence. An unknown kind is never guessed."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from controller.model_files.config_fields import ConfigScopes, is_count
from controller.model_files.defaults import ALL_WINDOWED, FULL_ATTENTION_PERIOD

_QWEN_FULL: Final = 28  # default of max_window_layers in Transformers' Qwen2Config
_JAMBA_FIRST: Final = 4  # default of attn_layer_offset in JambaConfig


class Kind(Enum):
    """What a layer keeps."""

    FULL = auto()  # keys and values of the complete context
    WINDOW = auto()  # of a sliding window or a chunk
    STATE = auto()  # a state of fixed size
    BOTH = auto()  # a state, and keys and values of the complete context
    NONE = auto()  # no memory of its own


class UnknownLayersError(Exception):
    """The config has no known description of what a layer keeps."""


_BY_NAME: Final = {
    **dict.fromkeys(("full_attention", "attention", "global_attention", "deepseek_sparse_attention"), Kind.FULL),
    **dict.fromkeys(("sliding_attention", "chunked_attention", "local_attention"), Kind.WINDOW),
    **dict.fromkeys(("linear_attention", "mamba", "mamba2", "conv", "recurrent", "kda"), Kind.STATE),
    "hybrid": Kind.BOTH,  # Zamba2
    **dict.fromkeys(("mlp", "moe"), Kind.NONE),
}
# Nemotron-H's letters.
_BY_LETTER: Final = {"M": Kind.STATE, "*": Kind.FULL, "-": Kind.NONE, "E": Kind.NONE}
# Types whose layers are all of one kind, without a field for it.
_BY_TYPE: Final = {
    "mamba": Kind.STATE, "mamba2": Kind.STATE, "falcon_mamba": Kind.STATE, "falcon_h1": Kind.BOTH,
}  # fmt: skip
# Types with layers of kinds that are not read here.
_UNREAD: Final = (
    "rwkv",
    "xlstm",
    "retnet",
    "hgrn",
    "hyena",
    "recurrent_gemma",
    "gla",
    "deltanet",
    "delta_net",
    "rodimus",
)
# Fields of a state. Without a field for the kinds, the layers with a state are unknown.
_OF_STATES: Final = ("mamba_d_state", "ssm_state_size", "state_size", "linear_num_value_heads", "conv_L_cache")


def kinds_of(config: ConfigScopes, layers: int, model_type: str) -> list[Kind]:
    """The kind of each layer. Raises `UnknownLayersError` if the config has an unknown kind."""
    if model_type.startswith(_UNREAD):
        raise UnknownLayersError(f"the layers of model_type {model_type}")
    kinds = [_BY_TYPE[model_type]] * layers if model_type in _BY_TYPE else _stated(config, layers, model_type)
    if kinds is None:
        if (sign := state_sign(config)) is not None:
            raise UnknownLayersError(f"which layers keep the state that {sign} is of")
        full = _full_by_window(config, layers, model_type)
        kinds = [Kind.FULL] * full + [Kind.WINDOW] * (layers - full)
    shared = config.count("num_kv_shared_layers")  # Gemma 3n and 4: the last layers use the cache of earlier ones
    if shared is None:
        return kinds
    if shared >= layers:
        raise UnknownLayersError(f"{shared} layers that use the cache of earlier ones, of {layers}")
    return kinds[: layers - shared] + [Kind.NONE] * shared


def state_sign(config: ConfigScopes) -> str | None:
    """The name of a field of a state, if the config has one."""
    return next((name for name in _OF_STATES if config.value(name) is not None), None)


def _stated(config: ConfigScopes, layers: int, model_type: str) -> list[Kind] | None:
    """The kinds by a field for them; None if the config has none."""
    for read in (_by_list, _by_kda, _by_letters, _by_indices, _by_blocks, _by_period):
        if (kinds := read(config, layers)) is not None:
            return kinds
    if model_type.startswith("llama4"):
        return _llama4(config, layers)
    return None


def _by_list(config: ConfigScopes, layers: int) -> list[Kind] | None:
    """A list with a name or a number for each layer."""
    names = config.value("layer_types", "layers_block_type")
    if isinstance(names, list):
        return [_named(name) for name in _enough(names, layers, "layer_types")]
    numbers = config.value("attn_type_list")  # MiniMax: 1 for attention, 0 for a state
    if isinstance(numbers, list):
        table = {0: Kind.STATE, 1: Kind.FULL}
        return [_of(table, number, "attn_type_list") for number in _enough(numbers, layers, "attn_type_list")]
    numbers = config.value("hybrid_layer_pattern")  # MiMo-V2: 1 for a layer with a window
    if isinstance(numbers, list):
        table = {0: Kind.FULL, 1: Kind.WINDOW}
        return [_of(table, n, "hybrid_layer_pattern") for n in _enough(numbers, layers, "hybrid_layer_pattern")]
    windows = config.value("sliding_windows", "interleaved_sliding_window")
    if isinstance(windows, list) and windows:
        return [Kind.WINDOW if is_count(windows[n % len(windows)]) else Kind.FULL for n in range(layers)]
    return None


def _named(name: Any) -> Kind:
    if not isinstance(name, str) or name not in _BY_NAME:
        raise UnknownLayersError(f"a layer of type {name!r:.60}")
    return _BY_NAME[name]


def _of(table: dict[int, Kind], number: Any, field: str) -> Kind:
    if isinstance(number, bool) or not isinstance(number, int) or number not in table:
        raise UnknownLayersError(f"{number!r:.60} in {field}")
    return table[number]


def _enough(values: Sequence[Any], layers: int, field: str) -> Sequence[Any]:
    if len(values) < layers:
        raise UnknownLayersError(f"{field}: it has {len(values)} entries for {layers} layers")
    return values[:layers]


def _by_kda(config: ConfigScopes, layers: int) -> list[Kind] | None:
    """Kimi-Linear: the numbers of the layers of each kind, from 1."""
    given = config.value("linear_attn_config")
    if not isinstance(given, dict) or not isinstance(given.get("kda_layers"), list):
        return None
    full = given.get("full_attn_layers")
    states, attention = (
        set(filter(is_count, given["kda_layers"])),
        set(filter(is_count, full if isinstance(full, list) else ())),
    )
    if not set(range(1, layers + 1)) <= states ^ attention:
        raise UnknownLayersError("linear_attn_config: a layer is of no kind, or of two")
    return [Kind.STATE if n in states else Kind.FULL for n in range(1, layers + 1)]


def _by_letters(config: ConfigScopes, layers: int) -> list[Kind] | None:
    pattern = config.value("hybrid_override_pattern")
    if not isinstance(pattern, str):
        return None
    letters = _enough(pattern, layers, "hybrid_override_pattern")
    if (other := next((letter for letter in letters if letter not in _BY_LETTER), None)) is not None:
        raise UnknownLayersError(f"{other!r:.60} in hybrid_override_pattern")
    return [_BY_LETTER[letter] for letter in letters]


def _by_indices(config: ConfigScopes, layers: int) -> list[Kind] | None:
    """Bamba: the numbers of the layers with attention."""
    indices = config.value("attn_layer_indices")
    if not isinstance(indices, list):
        return None
    full = {n for n in indices if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < layers}
    if len(full) != len(indices):
        raise UnknownLayersError("attn_layer_indices: an entry is not a layer's number, or is there twice")
    return [Kind.FULL if n in full else Kind.STATE for n in range(layers)]


def _by_blocks(config: ConfigScopes, layers: int) -> list[Kind] | None:
    """Nemotron-NAS: an object for each layer."""
    blocks = config.value("block_configs")
    if not isinstance(blocks, list):
        return None
    return [Kind.FULL if heads_in_group(block) else Kind.NONE for block in _enough(blocks, layers, "block_configs")]


def heads_in_group(block: Any) -> int:
    """Number of heads that share a key-value head in a layer of Nemotron-NAS; 0 without attention.

    Raises:
        UnknownLayersError: the object has another form.
    """
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, dict):
        raise UnknownLayersError("block_configs: an entry without attention")
    if attention.get("no_op") is True or attention.get("replace_with_linear") is True:
        return 0
    group = attention.get("n_heads_in_group")
    if not is_count(group):
        raise UnknownLayersError("block_configs: an entry without attention.n_heads_in_group")
    return int(group or 0)


def _by_period(config: ConfigScopes, layers: int) -> list[Kind] | None:
    every = config.count("full_attention_interval")  # Qwen3-Next
    if every is not None:
        return [Kind.STATE if (n + 1) % every else Kind.FULL for n in range(layers)]
    every = config.count("attn_layer_period")  # Jamba
    if every is not None:
        first = config.value("attn_layer_offset")
        first = first if is_count(first) or first == 0 else min(_JAMBA_FIRST, every - 1)
        return [Kind.FULL if n % every == first else Kind.STATE for n in range(layers)]
    every = config.count("layer_group_size")  # Ling and Ring 2.5: the rest behind the last group has attention
    if every is not None and every > 1:
        grouped = layers // every * every
        return [Kind.STATE if (n + 1) % every and n < grouped else Kind.FULL for n in range(layers)]
    step = config.count("mamba_step")  # Plamo 2
    if step is not None:
        if layers <= step // 2:
            return [Kind.STATE] * (layers - 1) + [Kind.FULL]
        return [Kind.FULL if n % step == step // 2 else Kind.STATE for n in range(layers)]
    return None


def _llama4(config: ConfigScopes, layers: int) -> list[Kind] | None:
    """Llama 4: 0 for a layer without rotary embedding, which attends to the complete context."""
    rope = config.value("no_rope_layers")
    if not isinstance(rope, list) or len(rope) < layers or window_of(config) is None:
        return None
    return [Kind.WINDOW if rotary == 1 else Kind.FULL for rotary in rope[:layers]]


def window_of(config: ConfigScopes) -> int | None:
    return config.count("sliding_window", "sliding_window_size", "attention_chunk_size")  # tokens


def _full_by_window(config: ConfigScopes, layers: int, model_type: str) -> int:
    """Number of layers with full attention, if the config has one window for the remaining layers."""
    used = config.flag("use_sliding_window")
    if used is None:  # the window of Qwen's configs is unused unless a flag is set
        used = not model_type.startswith("qwen")
    if window_of(config) is None or not used:
        return layers
    if model_type.startswith("qwen"):  # later layers have the window
        first = config.value("max_window_layers")
        return min(first, layers) if is_count(first) or first == 0 else min(_QWEN_FULL, layers)
    pattern = config.value("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
    if isinstance(pattern, str) and pattern:  # Exaone 4: a letter for each layer, L local and G global, repeated
        return sum(pattern[n % len(pattern)] == "G" for n in range(layers))
    every = pattern if is_count(pattern) else FULL_ATTENTION_PERIOD.get(model_type)
    if every is None:  # without a period, all layers of known models have the window, else no layer
        return 0 if model_type in ALL_WINDOWED else layers
    return layers // every
