"""What a model's config.json says of it. Untrusted: a field of the wrong kind counts as one that is not there."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from controller.domain.model_facts import ModelFacts
from controller.model_files.attention import Layers, blocks_of, layers_of
from controller.model_files.config_fields import Floors, language_floors, vision_floor, words
from controller.model_files.defaults import ANY_SPLIT_VISION, DEFAULTS, ENCODERS, VISION_HEADS, WHOLE_HEADS
from controller.model_files.files import ModelFiles
from controller.model_files.json_object import read_object
from controller.model_files.quantization import QUANTISED_BESIDE, quantization_of

CONFIG_FILE: Final = "config.json"
MAX_CONFIG_BYTES: Final = 16 * 2**20
# Servers take the smallest of these, and refuse to be told more (model_arch_config_convertor.py of vLLM).
_LENGTHS: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len", "n_ctx",
)  # fmt: skip


def read_config(files: ModelFiles) -> Mapping[str, Any]:
    """The config.json of a model, with how it is quantised where that stands in a file beside; empty without one.

    Raises:
        MetadataError: the file is there, but cannot be read or is no JSON object.
    """
    config = read_object(files, CONFIG_FILE, MAX_CONFIG_BYTES) if CONFIG_FILE in files.sizes else {}
    beside = next((name for name in QUANTISED_BESIDE if name in files.sizes), None)
    if beside is None or config.get("quantization_config") or config.get("compression_config"):
        return config
    stated = read_object(files, beside, MAX_CONFIG_BYTES)
    inner = stated.get("quantization")  # ModelOpt's file tells of its producer besides
    stated = inner if isinstance(inner, dict) else stated
    return config | {"quantization_config": {"quant_method": QUANTISED_BESIDE[beside], **stated}}


def with_config(facts: ModelFacts, config: Mapping[str, Any]) -> ModelFacts:
    """The facts with what a config.json adds to those of the weights."""
    floors = language_floors(config)
    inner = next((f["model_type"] for f in floors if isinstance(f.get("model_type"), str)), "")
    language = Floors(floors, DEFAULTS.get(inner, {}))
    outer = Floors((config,), {})
    model_type = outer.word("model_type") or ""
    tower = vision_floor(floors)
    layers = language.count("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
    kinds = Layers(0) if layers is None else layers_of(language, layers, inner or model_type)
    return replace(
        _with_heads(facts, language, layers or 0, inner or model_type),
        architectures=words(config.get("architectures")),
        model_type=model_type,
        # Older files write torch_dtype; a nested one may differ from the whole's, which is what engines go by.
        dtype=outer.word("dtype", "torch_dtype") or language.word("dtype", "torch_dtype"),
        layers=layers,
        full_layers=None if layers is None else kinds.full,
        uncached_layers=kinds.uncached,
        sliding_window=kinds.window,
        intermediate_size=language.count("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
        vocab=language.count("padded_vocab_size", "vocab_size"),
        context_length=language.least(*_LENGTHS),
        experts=language.count("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"),
        experts_per_token=language.count(
            "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k"
        ),
        vision=tower is not None,
        vision_heads=None if tower is None else _vision_heads(tower),
        quantization=quantization_of(language),
        # EmbeddingGemma is of a decoder's type, and says by this flag that it is none.
        encoder=bool({inner, model_type} & ENCODERS) or language.flag("use_bidirectional_attention") is True,
    )


def _with_heads(facts: ModelFacts, config: Floors, layers: int, model_type: str) -> ModelFacts:
    hidden = config.count("hidden_size", "n_embd", "d_model", "dim")
    heads = config.count("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
    head_dim = config.count("head_dim", "kv_channels")
    nope, rope = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim")
    if head_dim is None and nope is not None and rope is not None:
        head_dim = nope + rope
    if head_dim is None and hidden is not None and heads is not None:
        head_dim = hidden // heads or None
    latent = None if model_type in WHOLE_HEADS else config.count("kv_lora_rank")
    return replace(
        facts,
        hidden_size=hidden,
        heads=heads,
        kv_heads=_kv_heads(config, heads, layers),
        head_dim=head_dim,
        v_head_dim=config.count("v_head_dim"),
        kv_lora_rank=latent,
        qk_rope_head_dim=None if latent is None else rope,
        index_head_dim=None if latent is None else config.count("index_head_dim"),
    )


def _kv_heads(config: Floors, heads: int | None, layers: int) -> int | None:
    """Fewer than heads where queries share them, the most of a layer. Falcon and ChatGLM say by a flag whether so."""
    least_shared = min(filter(None, blocks_of(config, layers)), default=None)
    if least_shared is not None and heads is not None:
        return max(1, heads // least_shared)
    if config.flag("multi_query_attention") is False:
        return heads
    stated = config.count("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")
    if config.flag("multi_query") is True and config.flag("new_decoder_architecture") is not True:
        return 1
    return stated or heads


def _vision_heads(tower: Mapping[str, Any]) -> int | None:
    stated = Floors((tower,), {}).count("num_attention_heads", "num_heads", "attention_heads")
    model_type = tower.get("model_type")
    if not isinstance(model_type, str):
        return stated
    return None if model_type in ANY_SPLIT_VISION else stated or VISION_HEADS.get(model_type)
