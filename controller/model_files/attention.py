"""A model's layers by kind of attention: full, with a sliding window, or with a state of fixed size."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controller.model_files.config_fields import ConfigScopes, is_count
from controller.model_files.defaults import ALL_WINDOWED, FULL_ATTENTION_PERIOD

_MAX_LAYERS: Final = 100_000
_QWEN_FULL: Final = 28  # default of max_window_layers in Transformers' Qwen2Config


# Kinds of layers that keep a state of fixed size, or nothing.
_UNCACHED: Final = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "mlp", "moe"})


@dataclass(frozen=True, slots=True)
class Layers:
    """`full` layers have full attention, `uncached` layers a state of fixed size, and the others a sliding window."""

    full: int
    uncached: int = 0
    window: int | None = None  # tokens; None if no layer has one


def layers_of(config: ConfigScopes, layers: int, model_type: str) -> Layers:
    """The layers of a config that names each layer's kind, gives a period, or gives one window for all."""
    kinds = config.value("layer_types", "layers_block_type")
    if isinstance(kinds, list) and len(kinds) == layers:
        return _by_name(config, kinds)
    uncached = _without_attention(config, layers)
    if uncached is not None:
        return Layers(layers - uncached, uncached)
    pattern = config.value("hybrid_layer_pattern")  # MiMo-V2: 1 for a layer with a window
    if isinstance(pattern, list) and len(pattern) == layers:
        return Layers(layers - pattern.count(1), window=_window(config))
    return _by_window(config, layers, model_type)


def _by_name(config: ConfigScopes, kinds: Iterable[object]) -> Layers:
    full = windowed = uncached = 0
    for kind in kinds:
        if kind in ("sliding_attention", "chunked_attention"):
            windowed += 1
        elif isinstance(kind, str) and kind in _UNCACHED:
            uncached += 1
        else:  # an unknown kind may keep everything, as sparse attention does
            full += 1
    return Layers(full, uncached, _window(config) if windowed else None)


def _without_attention(config: ConfigScopes, layers: int) -> int | None:
    """The number of layers without attention; None: the config does not say."""
    pattern = config.value("hybrid_override_pattern")  # Nemotron-H: one letter for each layer, * for attention
    if isinstance(pattern, str) and len(pattern) == layers:
        return layers - pattern.count("*")
    indices = config.value("attn_layer_indices")  # Bamba
    if isinstance(indices, list) and 0 < len(indices) <= layers:
        return layers - len(indices)
    blocks = blocks_of(config, layers)
    if blocks:
        return sum(heads == 0 for heads in blocks)
    # Qwen3-Next and Jamba: one layer with attention per period.
    every = config.count("full_attention_interval", "attn_layer_period")
    return None if every is None else layers - layers // every


def blocks_of(config: ConfigScopes, layers: int) -> tuple[int, ...]:
    """Nemotron-NAS: by layer, how many heads share a key-value head, 0 without attention. Other models: empty."""
    blocks = config.value("block_configs")
    if not isinstance(blocks, list) or len(blocks) != layers:
        return ()
    attentions = [block["attention"] for block in blocks if isinstance(block, dict) and "attention" in block]
    groups = [attention.get("n_heads_in_group") for attention in attentions if isinstance(attention, dict)]
    return tuple(int(group or 0) if is_count(group) else 0 for group in groups) if len(groups) == layers else ()


def _window(config: ConfigScopes) -> int | None:
    return config.count("sliding_window", "attention_chunk_size")


def _by_window(config: ConfigScopes, layers: int, model_type: str) -> Layers:
    window = _window(config)
    used = config.flag("use_sliding_window")
    if used is None:  # Qwen's configs have a window that is unused unless a flag is set
        used = not model_type.startswith("qwen")
    if window is None or not used:
        return Layers(layers)
    if model_type.startswith("qwen"):  # later layers have the window
        first = config.value("max_window_layers")
        return Layers(min(first, layers) if is_count(first) or first == 0 else min(_QWEN_FULL, layers), window=window)
    pattern = config.value("sliding_window_pattern", "global_attn_every_n_layers")
    if isinstance(pattern, str) and pattern:  # Exaone 4: a letter for each layer, L local and G global, repeated
        return Layers(sum(pattern[n % len(pattern)] == "G" for n in range(min(layers, _MAX_LAYERS))), window=window)
    every = pattern if is_count(pattern) else FULL_ATTENTION_PERIOD.get(model_type)
    if every is None:  # without a period: all layers have the window for known models, else none
        return Layers(0, window=window) if model_type in ALL_WINDOWED else Layers(layers)
    return Layers(layers // every, window=window)
