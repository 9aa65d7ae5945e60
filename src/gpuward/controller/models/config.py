"""The few fields of a model's config.json that decide how it may be split."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpuward.controller.models.jsonfile import read_object

CONFIG_FILE: Final = "config.json"
MAX_CONFIG_BYTES: Final = 16 * 2**20
# Models that see or hear keep their language part's figures one floor down, under one of these.
_NESTED: Final = ("text_config", "llm_config", "language_config")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """None: the file does not say."""

    heads: int | None = None
    kv_heads: int | None = None
    vocab: int | None = None


def parse_config(config: dict[str, Any]) -> ModelConfig:
    """Picks the fields, from the nested language part where the top floor does not have them."""
    floors = [config, *(config[key] for key in _NESTED if isinstance(config.get(key), dict))]

    def first(name: str) -> int | None:
        for floor in floors:
            value = floor.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    heads = first("num_attention_heads")
    return ModelConfig(heads, first("num_key_value_heads") or heads, first("vocab_size"))


def folder_config(folder: Path) -> ModelConfig:
    """Reads config.json where there is one.

    Raises:
        MetadataError: the file is there, but cannot be read or is no JSON object.
    """
    path = folder / CONFIG_FILE
    return parse_config(read_object(path, MAX_CONFIG_BYTES)) if path.exists() else ModelConfig()
