"""Facts from a model's config.json. Untrusted: a field of the wrong type counts as missing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from controller.domain.model_facts import ModelFacts
from controller.model_files.attention import Layers, blocks_of, layers_of
from controller.model_files.config_fields import ConfigScopes, language_scopes, vision_scope, words
from controller.model_files.defaults import DEFAULTS, ENCODERS, VISION_HEADS, WHOLE_HEAD_CACHE, WHOLE_VISION_TOWERS
from controller.model_files.files import ModelFiles
from controller.model_files.json_object import read_object
from controller.model_files.quantization import QUANTIZATION_FILES, quantization_of

CONFIG_FILE: Final = "config.json"
MAX_CONFIG_BYTES: Final = 16 * 2**20
# Servers take the smallest of these and refuse a larger length (model_arch_config_convertor.py of vLLM).
_LENGTHS: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len", "n_ctx",
)  # fmt: skip


def read_config(files: ModelFiles) -> Mapping[str, Any]:
    """The config.json of a model; empty if there is none. A separate quantisation file is merged into it.

    Raises:
        MetadataError: the file exists, but cannot be read or is not a JSON object.
    """
    config = read_object(files, CONFIG_FILE, MAX_CONFIG_BYTES) if CONFIG_FILE in files.sizes else {}
    beside = next((name for name in QUANTIZATION_FILES if name in files.sizes), None)
    if beside is None or config.get("quantization_config") or config.get("compression_config"):
        return config
    stated = read_object(files, beside, MAX_CONFIG_BYTES)
    inner = stated.get("quantization")  # ModelOpt's file has other parts besides
    stated = inner if isinstance(inner, dict) else stated
    return config | {"quantization_config": {"quant_method": QUANTIZATION_FILES[beside], **stated}}


def with_config(facts: ModelFacts, config: Mapping[str, Any]) -> ModelFacts:
    """The facts of the weights, with those of a config.json added."""
    scopes = language_scopes(config)
    inner = next((f["model_type"] for f in scopes if isinstance(f.get("model_type"), str)), "")
    language = ConfigScopes(scopes, DEFAULTS.get(inner, {}))
    outer = ConfigScopes((config,), {})
    model_type = outer.word("model_type") or ""
    tower = vision_scope(scopes)
    layers = language.count("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
    kinds = Layers(0) if layers is None else layers_of(language, layers, inner or model_type)
    return replace(
        _with_heads(facts, language, layers or 0, inner or model_type),
        architectures=words(config.get("architectures")),
        model_type=model_type,
        # Older files write torch_dtype. Engines use the outer one, from which a nested one may differ.
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
        # EmbeddingGemma has a decoder's type, and this flag shows that it is an encoder.
        encoder=bool({inner, model_type} & ENCODERS) or language.flag("use_bidirectional_attention") is True,
    )


def _with_heads(facts: ModelFacts, config: ConfigScopes, layers: int, model_type: str) -> ModelFacts:
    hidden = config.count("hidden_size", "n_embd", "d_model", "dim")
    heads = config.count("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
    head_dim = config.count("head_dim", "kv_channels")
    nope, rope = config.count("qk_nope_head_dim"), config.count("qk_rope_head_dim")
    if head_dim is None and nope is not None and rope is not None:
        head_dim = nope + rope
    if head_dim is None and hidden is not None and heads is not None:
        head_dim = hidden // heads or None
    latent = None if model_type in WHOLE_HEAD_CACHE else config.count("kv_lora_rank")
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


def _kv_heads(config: ConfigScopes, heads: int | None, layers: int) -> int | None:
    """The most key-value heads of a layer; fewer than heads if queries share them. Falcon and ChatGLM use flags."""
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
    stated = ConfigScopes((tower,), {}).count("num_attention_heads", "num_heads", "attention_heads")
    model_type = tower.get("model_type")
    if not isinstance(model_type, str):
        return stated
    return None if model_type in WHOLE_VISION_TOWERS else stated or VISION_HEADS.get(model_type)
