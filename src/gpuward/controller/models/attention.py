"""Which of a model's layers keep what of the past: all of it, a window of it, or a state that does not grow."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpuward.controller.models.config_floors import Floors, is_count
from gpuward.controller.models.defaults import FULL_EVERY

_MAX_LAYERS: Final = 100_000
_QWEN_FULL: Final = 28  # max_window_layers where the file does not say: Qwen2Config of Transformers


@dataclass(frozen=True, slots=True)
class Layers:
    """`full` layers look at everything, `uncached` keep a state of a fixed size, the rest looks through the window."""

    full: int
    uncached: int = 0
    window: int | None = None  # tokens; None where no layer has one


def layers_of(config: Floors, layers: int, model_type: str) -> Layers:
    """How a config says it: by name of each layer, by a period, or by a window that counts for all."""
    kinds = config.value("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        return _by_name(config, kinds)
    pattern = config.value("hybrid_override_pattern")  # Nemotron-H: one letter for each layer, * for attention
    if isinstance(pattern, str) and len(pattern) == layers:
        return Layers(pattern.count("*"), uncached=layers - pattern.count("*"))
    # Qwen3-Next and Jamba: one layer with attention in so many.
    every = config.count("full_attention_interval", "attn_layer_period")
    if every is not None:
        return Layers(layers // every, uncached=layers - layers // every)
    return _by_window(config, layers, model_type)


def _by_name(config: Floors, kinds: Iterable[object]) -> Layers:
    full = windowed = uncached = 0
    for kind in kinds:
        if kind in ("full_attention", "attention"):
            full += 1
        elif kind in ("sliding_attention", "chunked_attention"):
            windowed += 1
        else:  # linear attention, Mamba, convolution
            uncached += 1
    return Layers(full, uncached, _window(config) if windowed else None)


def _window(config: Floors) -> int | None:
    return config.count("sliding_window", "attention_chunk_size")


def _by_window(config: Floors, layers: int, model_type: str) -> Layers:
    window = _window(config)
    used = config.flag("use_sliding_window")
    if used is None:  # Qwen's name a window that they do not use unless they say so
        used = not model_type.startswith("qwen")
    if window is None or not used:
        return Layers(layers)
    if model_type.startswith("qwen"):  # layers from this one on have the window
        first = config.value("max_window_layers")
        return Layers(min(first, layers) if is_count(first) or first == 0 else min(_QWEN_FULL, layers), window=window)
    pattern = config.value("sliding_window_pattern", "global_attn_every_n_layers")
    if isinstance(pattern, str) and pattern:  # Exaone 4: a letter for each layer, L local and G global, repeated
        return Layers(sum(pattern[n % len(pattern)] == "G" for n in range(min(layers, _MAX_LAYERS))), window=window)
    every = pattern if is_count(pattern) else FULL_EVERY.get(model_type)
    return Layers(0 if every is None else layers // every, window=window)
