"""Reads a model's config.json. It is untrusted: a field of the wrong type counts as missing."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from controller.domain.model_facts import CachedLayers, ModelFacts, Quantization
from controller.model_files.config_fields import ConfigScopes, is_count, is_word, language_scopes, vision_scope, words
from controller.model_files.defaults import (
    ATTENTION_FREE,
    DEFAULTS,
    ENCODERS,
    VISION_HEADS,
    WHOLE_HEAD_CACHE,
    WHOLE_VISION_TOWERS,
)
from controller.model_files.files import ModelFiles, read_object
from controller.model_files.layer_kinds import state_sign
from controller.model_files.layer_memory import KV_HEADS, Heads, Layers, heads_of_all, layers_of, most_kv_heads

CONFIG_FILE: Final = "config.json"
MAX_CONFIG_BYTES: Final = 16 * 2**20
# Servers use the smallest of these and refuse a larger length (model_arch_config_convertor.py of vLLM).
_LENGTHS: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len", "n_ctx",
)  # fmt: skip


_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers", "decoder_layers")
_INNER: Final = ("intermediate_size", "decoder_ffn_dim", "ffn_dim", "n_inner", "ffn_hidden_size")
# Of models with an encoder, whose num_hidden_layers may be the encoder's.
_DECODER_LAYERS: Final = ("decoder_layers", "num_decoder_layers")
_DECODER_HEADS: Final = ("decoder_attention_heads",)
# Fields that name another repository with a part of the weights: Ultravox.
_ELSEWHERE: Final = ("text_model_id", "audio_model_id")
# Separate files for it, with their methods: of quantisers before Transformers 4.33, and of ModelOpt.
QUANTIZATION_FILES: Final[Mapping[str, str]] = {
    "hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq",
}  # fmt: skip
# Methods whose name gives the bits.
_BITS: Final[Mapping[str, int]] = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4, "awq": 4, "nvfp4": 4}
_MAX_GROUPS: Final = 64


def read_config(files: ModelFiles) -> Mapping[str, Any]:
    """The config.json of a model, empty if the file is missing. A separate quantisation file is merged into it.

    Raises:
        MetadataError: the file exists, but cannot be read or is not a JSON object.
    """
    config = read_object(files, CONFIG_FILE, MAX_CONFIG_BYTES) if CONFIG_FILE in files.sizes else {}
    separate = next((name for name in QUANTIZATION_FILES if name in files.sizes), None)
    if separate is None or config.get("quantization_config") or config.get("compression_config"):
        return config
    stated = read_object(files, separate, MAX_CONFIG_BYTES)
    inner = stated.get("quantization")  # ModelOpt's file has other parts too
    stated = inner if isinstance(inner, dict) else stated
    return config | {"quantization_config": {"quant_method": QUANTIZATION_FILES[separate], **stated}}


def with_config(facts: ModelFacts, config: Mapping[str, Any]) -> ModelFacts:
    """Adds the fields of a config.json to those of the weights."""
    scopes = language_scopes(config)
    inner = next((f["model_type"] for f in scopes if isinstance(f.get("model_type"), str)), "")
    language = ConfigScopes(scopes, DEFAULTS.get(inner, {}))
    outer = ConfigScopes((config,), {})
    model_type = outer.word("model_type") or ""
    tower = vision_scope(scopes)
    translates = language.flag("is_encoder_decoder") is True
    layers = language.count(*_DECODER_LAYERS, *_LAYERS) if translates else language.count(*_LAYERS)
    facts = _with_heads(facts, language, inner or model_type, _DECODER_HEADS if translates else ())
    kinds = (
        _uncounted(language, inner or model_type)
        if layers is None
        else layers_of(language, layers, inner or model_type, _heads_of(facts))
    )
    if translates and layers is not None:
        kinds = _with_encoder(kinds, facts, language, layers)
    bidirectional = _bidirectional(config, language)
    return replace(
        facts,
        architectures=words(config.get("architectures")),
        model_type=model_type,
        # Older files have torch_dtype. Engines use the outer field, from which a nested one may differ.
        dtype=outer.word("dtype", "torch_dtype") or language.word("dtype", "torch_dtype"),
        layers=layers,
        full_layers=None if layers is None else kinds.full,
        uncached_layers=kinds.uncached,
        cached=kinds.cached,
        states=kinds.states,
        unknown=kinds.unknown,
        elsewhere=next((name for name in _ELSEWHERE if outer.value(name) is not None), None),
        sliding_window=kinds.window,
        intermediate_size=language.count(*_INNER),
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
        bidirectional=bidirectional,
    )


def _uncounted(language: ConfigScopes, model_type: str) -> Layers:
    """Memory of an unknown number of layers. A share of the weights does not bound states."""
    stateful = state_sign(language) is not None or model_type in ATTENTION_FREE
    return Layers(unknown="how many layers keep a state") if stateful else Layers()


def _bidirectional(config: Mapping[str, Any], language: ConfigScopes) -> bool:
    named = any("Bidirectional" in name for name in words(config.get("architectures")))
    return named or language.flag("is_causal") is False or language.flag("use_bidirectional_attention") is True


def _with_encoder(kinds: Layers, facts: ModelFacts, config: ConfigScopes, layers: int) -> Layers:
    """Adds the encoder's output, which the decoder's layers keep as keys and values (CrossAttentionSpec of vLLM)."""
    tokens, heads, size = config.count("max_source_positions"), facts.kv_heads, facts.head_dim
    if kinds.unknown is not None:
        return kinds
    if tokens is None or heads is None or size is None:
        return replace(kinds, unknown="how much of its encoder's output the decoder keeps")
    return replace(
        kinds, cached=(CachedLayers(layers, heads, 2 * size), CachedLayers(layers, heads, 2 * size, tokens=tokens))
    )


def _heads_of(facts: ModelFacts) -> Heads:
    latent = None if facts.kv_lora_rank is None else facts.kv_lora_rank + (facts.qk_rope_head_dim or 0)
    return Heads(facts.kv_heads, facts.head_dim, facts.v_head_dim, latent)


def _with_heads(facts: ModelFacts, config: ConfigScopes, model_type: str, first: tuple[str, ...]) -> ModelFacts:
    hidden = config.count("hidden_size", "n_embd", "d_model", "dim", "model_dim")
    heads = config.count(*first) if first else None
    heads = heads or heads_of_all(
        config, "num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"
    )
    if model_type in ATTENTION_FREE:
        # Heads of its states, which a degree of parallelism must divide too; it keeps no keys.
        return replace(facts, hidden_size=hidden, heads=heads)
    head_dim = config.count("head_dim", "attention_head_dim", "kv_channels", "hidden_size_per_head")
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
        kv_heads=heads if first else _kv_heads(config, heads),
        head_dim=head_dim,
        v_head_dim=config.count("v_head_dim"),
        kv_lora_rank=latent,
        qk_rope_head_dim=None if latent is None else rope,
        index_head_dim=None if latent is None else config.count("index_head_dim"),
    )


def _kv_heads(config: ConfigScopes, heads: int | None) -> int | None:
    """The most key-value heads of a layer; fewer than heads if queries share them. Falcon and ChatGLM use flags."""
    if (most := most_kv_heads(config, heads)) is not None:
        return most
    if config.flag("multi_query_attention") is False:
        return heads
    stated = config.count(*KV_HEADS)
    if config.flag("multi_query") is True and config.flag("new_decoder_architecture") is not True:
        return 1
    return stated or heads


def _vision_heads(tower: Mapping[str, Any]) -> int | None:
    stated = ConfigScopes((tower,), {}).count("num_attention_heads", "num_heads", "attention_heads")
    model_type = tower.get("model_type")
    if not isinstance(model_type, str):
        return stated
    return None if model_type in WHOLE_VISION_TOWERS else stated or VISION_HEADS.get(model_type)


def quantization_of(config: ConfigScopes) -> Quantization | None:
    """The quantisation; None if the weights have the config's dtype."""
    stated = config.value("quantization_config", "compression_config")
    if not isinstance(stated, dict):
        return None
    method = stated.get("quant_method")
    if not is_word(method):  # early llm-compressor wrote no name
        method = "compressed-tensors" if "config_groups" in stated else None
    if not isinstance(method, str):
        return None
    method = method.lower()
    return Quantization(method, next(_bits(stated, method), None))


def _bits(stated: Mapping[str, Any], method: str) -> Iterator[int]:
    """The bits of a weight by each possible field, the most reliable first."""
    for name in ("bits", "w_bit", "weight_bits"):
        if is_count(stated.get(name)):
            yield int(stated[name])
    groups = stated.get("config_groups")  # compressed-tensors, ModelOpt
    for group in list(groups.values())[:_MAX_GROUPS] if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if isinstance(weights, dict) and is_count(weights.get("num_bits")):
            yield int(weights["num_bits"])
    if stated.get("load_in_4bit") is True:  # bitsandbytes
        yield 4
    if stated.get("load_in_8bit") is True:
        yield 8
    algorithm = str(stated.get("quant_algo", "")).lower()  # ModelOpt: FP8, NVFP4, W4A8_AWQ
    for name in (method, algorithm):
        if name in _BITS:
            yield _BITS[name]
