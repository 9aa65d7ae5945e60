"""What the layers of public models keep: figures reckoned by hand from their config.json and vLLM's rules."""

from typing import Any

import pytest

from controller.domain.model_facts import ModelFacts, facts_from_json, facts_to_json
from controller.domain.splits import Split
from controller.engines.estimates.memory import Workload, cache_bytes_per_token, cache_per_gpu
from controller.engines.estimates.states import state_bytes
from controller.model_files.config import with_config

BARE = ModelFacts("safetensors", 1)
ONE = Split(1, 1, 1)
CONTEXT = 8192
KDA = [n for n in range(1, 28) if n % 4 and n != 27]

HYBRIDS: dict[str, dict[str, Any]] = {
    "Qwen3-Next-80B-A3B": {
        "model_type": "qwen3_next", "num_hidden_layers": 48, "full_attention_interval": 4, "hidden_size": 2048,
        "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
    },
    "Qwen3.6-35B-A3B": {
        "model_type": "qwen3_5_moe",
        "text_config": {
            "model_type": "qwen3_5_moe_text", "num_hidden_layers": 40, "hidden_size": 2048, "num_attention_heads": 16,
            "num_key_value_heads": 2, "head_dim": 256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
            "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
            "mamba_ssm_dtype": "float32",
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        },
    },
    "Kimi-Linear-48B-A3B": {
        "model_type": "kimi_linear", "num_hidden_layers": 27, "hidden_size": 2304, "num_attention_heads": 32,
        "num_key_value_heads": 32, "head_dim": 72, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128,
        "linear_attn_config": {
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "kda_layers": KDA, "head_dim": 128, "num_heads": 32,
            "short_conv_kernel_size": 4,
        },
    },
    "Nemotron-3-Nano-30B-A3B": {
        "model_type": "nemotron_h", "num_hidden_layers": 52, "hidden_size": 2688, "num_attention_heads": 32,
        "num_key_value_heads": 2, "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8,
        "ssm_state_size": 128, "conv_kernel": 4,
        "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    },
    "Mamba-Codestral-7B": {
        "model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 4096, "expand": 2, "num_heads": 128,
        "head_dim": 64, "n_groups": 8, "state_size": 128, "conv_kernel": 4, "chunk_size": 256,
    },
    "Falcon-Mamba-7B": {
        "model_type": "falcon_mamba", "num_hidden_layers": 64, "hidden_size": 4096, "intermediate_size": 8192,
        "expand": 16, "state_size": 16, "conv_kernel": 4,
    },
    "Falcon-H1-34B": {
        "model_type": "falcon_h1", "num_hidden_layers": 72, "hidden_size": 5120, "num_attention_heads": 20,
        "num_key_value_heads": 4, "head_dim": 128, "mamba_d_ssm": 4096, "mamba_d_state": 256, "mamba_n_groups": 2,
        "mamba_n_heads": 32, "mamba_d_head": 128, "mamba_d_conv": 4, "mamba_expand": 2,
    },
    "Granite-4.0-H-Small": {
        "model_type": "granitemoehybrid", "num_hidden_layers": 40, "hidden_size": 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128,
        "mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
        "layer_types": ["attention" if n in (5, 15, 25, 35) else "mamba" for n in range(40)],
    },
    "Jamba-v0.1": {
        "model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_key_value_heads": 8, "attn_layer_period": 8, "attn_layer_offset": 4,
        "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256,
    },
    "LFM2-1.2B": {
        "model_type": "lfm2", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 8, "conv_L_cache": 3, "conv_dim": 2048,
        "layer_types": ["full_attention" if n in (2, 5, 8, 10, 12, 14) else "conv" for n in range(16)],
    },
    "MiniMax-M1": {
        "model_type": "minimax_m1", "num_hidden_layers": 80, "hidden_size": 6144, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "attn_type_list": ([0] * 7 + [1]) * 10,
    },
    "Zamba2-1.2B": {
        "model_type": "zamba2", "num_hidden_layers": 38, "hidden_size": 2048, "num_attention_heads": 32,
        "num_key_value_heads": 32, "attention_head_dim": 128, "n_mamba_heads": 64, "mamba_headdim": 64,
        "mamba_d_state": 128, "mamba_ngroups": 1, "mamba_d_conv": 4, "mamba_expand": 2,
        "layers_block_type": ["hybrid" if n in (5, 11, 17, 23, 29, 35) else "mamba" for n in range(38)],
    },
}  # fmt: skip


def read(config: dict[str, Any]) -> ModelFacts:
    found = with_config(BARE, config)
    assert facts_from_json(facts_to_json(found)) == found
    return found


@pytest.mark.parametrize(
    ("name", "per_token", "layers", "each"),
    [
        # conv in 16 bits + recurrent in its own type, of one layer
        ("Qwen3-Next-80B-A3B", 12 * 2 * 512 * 2, 36, 8192 * 3 * 2 + 32 * 128 * 128 * 2),
        ("Qwen3.6-35B-A3B", 10 * 2 * 512 * 2, 30, 8192 * 3 * 2 + 32 * 128 * 128 * 4),
        ("Kimi-Linear-48B-A3B", 7 * 576 * 2, 20, 3 * 4096 * 3 * 2 + 32 * 128 * 128 * 4),
        ("Nemotron-3-Nano-30B-A3B", 6 * 2 * 256 * 2, 23, (4096 + 2 * 8 * 128) * 3 * 2 + 4096 * 128 * 4),
        ("Mamba-Codestral-7B", 0, 64, (8192 + 2 * 8 * 128) * 3 * 2 + 8192 * 128 * 2),
        ("Falcon-Mamba-7B", 0, 64, 8192 * 3 * 2 + 8192 * 16 * 2),
        ("Falcon-H1-34B", 72 * 4 * 256 * 2, 72, (4096 + 2 * 2 * 256) * 3 * 2 + 4096 * 256 * 2),
        ("Granite-4.0-H-Small", 4 * 8 * 256 * 2, 36, (8192 + 2 * 128) * 3 * 2 + 8192 * 128 * 2),
        ("Jamba-v0.1", 4 * 8 * 256 * 2, 28, 8192 * 3 * 2 + 8192 * 16 * 2),
        ("LFM2-1.2B", 6 * 8 * 128 * 2, 10, 2048 * 2 * 2),
        ("MiniMax-M1", 10 * 8 * 256 * 2, 70, 64 * 128 * 128 * 2),
        ("Zamba2-1.2B", 6 * 32 * 256 * 2, 38, (4096 + 2 * 128) * 3 * 2 + 4096 * 128 * 2),
    ],
)
def test_states_and_caches_of_hybrid_models(name: str, per_token: int, layers: int, each: int) -> None:
    facts = read(HYBRIDS[name])
    assert facts.unknown is None
    assert cache_bytes_per_token(facts, 2) == per_token
    assert facts.states is not None
    recurrent = 4 if facts.states.recurrent_dtype == "float32" else 2
    assert (facts.states.layers, state_bytes(facts.states, 1, 2, recurrent)) == (layers, each)


def test_tensor_parallelism_divides_a_state_but_no_group() -> None:
    states = read(HYBRIDS["Granite-4.0-H-Small"]).states  # one group
    assert states is not None
    assert state_bytes(states, 4, 2, 2) == (8192 // 4 + 2 * 128) * 3 * 2 + 8192 // 4 * 128 * 2
    assert state_bytes(states, 1, 2, 2, speculative=2) == (8192 + 256) * 5 * 2 + 8192 * 128 * 2


GEMMA4 = {
    "model_type": "gemma4_text", "num_hidden_layers": 60, "hidden_size": 5376, "num_attention_heads": 32,
    "num_key_value_heads": 16, "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 4,
    "attention_k_eq_v": True, "sliding_window": 1024,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
}  # fmt: skip
MIMO = {
    "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 192, "v_head_dim": 128, "swa_num_attention_heads": 64, "swa_num_key_value_heads": 8,
    "swa_head_dim": 192, "swa_v_head_dim": 128, "sliding_window": 128, "hidden_size": 4096,
    "hybrid_layer_pattern": [0] + ([1] * 4 + [0]) + ([1] * 5 + [0]) * 7,
}  # fmt: skip
STEP = {
    "model_type": "step3p5", "num_hidden_layers": 45, "hidden_size": 4096, "num_attention_heads": 64,
    "num_attention_groups": 8, "head_dim": 128, "sliding_window": 512,
    "attention_other_setting": {
        "attention_type": "sliding_attention", "num_attention_heads": 96, "num_attention_groups": 4, "head_dim": 128,
    },
    "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 11 + ["full_attention"],
}  # fmt: skip
NAS = {
    "model_type": "nemotron-nas", "num_hidden_layers": 4, "num_attention_heads": 64, "hidden_size": 8192,
    "block_configs": [
        {"attention": {"n_heads_in_group": 8, "no_op": False}}, {"attention": {"n_heads_in_group": 16}},
        {"attention": {"n_heads_in_group": None, "no_op": True}}, {"attention": {"n_heads_in_group": 64}},
    ],
}  # fmt: skip
WHISPER = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "is_encoder_decoder": True,
    "d_model": 1280, "num_hidden_layers": 32, "encoder_layers": 32, "encoder_attention_heads": 20,
    "decoder_layers": 4, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120, "max_source_positions": 1500,
    "max_target_positions": 448, "vocab_size": 51866,
}  # fmt: skip
DEEPSEEK_V4 = {
    "model_type": "deepseek_v4", "num_hidden_layers": 5, "num_attention_heads": 64, "num_key_value_heads": 1,
    "head_dim": 512, "qk_rope_head_dim": 64, "sliding_window": 128, "index_head_dim": 128, "index_n_heads": 64,
    "compress_ratios": [0, 0, 4, 128, 4, 0], "hidden_size": 4096,
}  # fmt: skip
V4_ENTRY = 512 + 72


@pytest.mark.parametrize(
    ("config", "per_token", "of_context"),
    [
        # Gemma 4 31B: 4 larger heads in layers with full attention, 16 in the others.
        (GEMMA4, (10 * 4 * 1024 + 50 * 16 * 512) * 2, (10 * 4 * 1024 * CONTEXT + 50 * 16 * 512 * 1024) * 2),
        # Gemma 4 E4B has no global heads of its own, and the last layers use the cache of earlier ones.
        (
            GEMMA4 | {"num_hidden_layers": 12, "num_key_value_heads": 2, "num_global_key_value_heads": None,
                      "attention_k_eq_v": False, "num_kv_shared_layers": 6},
            (2 * 1024 + 5 * 2 * 512) * 2,
            (2 * 1024 * CONTEXT + 5 * 2 * 512 * 1024) * 2,
        ),
        (MIMO, (9 * 4 + 39 * 8) * 320 * 2, (9 * 4 * CONTEXT + 39 * 8 * 128) * 320 * 2),
        (STEP, (12 * 8 + 33 * 4) * 256 * 2, (12 * 8 * CONTEXT + 33 * 4 * 512) * 256 * 2),
        (NAS, (8 + 4 + 1) * 256 * 2, (8 + 4 + 1) * 256 * 2 * CONTEXT),
        # Key-value heads of each layer, as OpenELM-270M has them.
        (
            {"num_transformer_layers": 4, "num_kv_heads": [3, 3, 4, 5], "num_query_heads": [12, 12, 16, 20],
             "head_dim": 64, "model_dim": 1280},
            15 * 128 * 2,
            15 * 128 * 2 * CONTEXT,
        ),
        # MiniMax-M2: a list of kinds in which all are attention.
        (
            {"model_type": "minimax_m2", "num_hidden_layers": 62, "attn_type_list": [1] * 62, "head_dim": 128,
             "num_attention_heads": 48, "num_key_value_heads": 8},
            62 * 8 * 256 * 2,
            62 * 8 * 256 * 2 * CONTEXT,
        ),
        # LongCat-Flash: two attentions in each layer.
        (
            {"model_type": "longcat_flash", "num_layers": 28, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
             "qk_nope_head_dim": 128, "num_attention_heads": 64},
            56 * 576 * 2,
            56 * 576 * 2 * CONTEXT,
        ),
        # Llama 4: layers without rotary embedding see all.
        (
            {"model_type": "llama4_text", "num_hidden_layers": 8, "num_attention_heads": 40, "num_key_value_heads": 8,
             "head_dim": 128, "attention_chunk_size": 4096, "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0]},
            8 * 8 * 256 * 2,
            (2 * CONTEXT + 6 * 4096) * 8 * 256 * 2,
        ),
        # Exaone MoE: a window of its own for each layer.
        (
            {"num_hidden_layers": 3, "num_attention_heads": 8, "head_dim": 64, "sliding_windows": [128, 512, None]},
            3 * 8 * 128 * 2,
            (128 + 512 + CONTEXT) * 8 * 128 * 2,
        ),
        # Whisper large-v3-turbo: 4 layers of its decoder, each with 1500 entries of its encoder besides.
        (WHISPER, 4 * 20 * 128 * 2, 4 * 20 * 128 * 2 * (CONTEXT + 1500)),
        # DeepSeek-V4: a window in each layer, an entry for each 4 or 128 tokens, and in 32 bits what comes next.
        (
            DEEPSEEK_V4,
            None,
            (5 * 128 * V4_ENTRY + 2 * CONTEXT // 4 * V4_ENTRY + CONTEXT // 128 * V4_ENTRY) * 2
            + 2 * CONTEXT // 4 * 132 + 2 * 8 * 4 * (2048 + 512) + 128 * 4 * 1024,
        ),
    ],
)  # fmt: skip
def test_layers_that_differ(config: dict[str, Any], per_token: int | None, of_context: int) -> None:
    facts = read(config)
    assert facts.unknown is None
    if per_token is not None:
        assert cache_bytes_per_token(facts, 2) == per_token
    assert cache_per_gpu(facts, ONE, Workload(CONTEXT, 1, 2, 1, 1)) == of_context


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "something_new"]},
        {"num_hidden_layers": 2, "layer_types": [["conv"], {}]},
        {"num_hidden_layers": 3, "layer_types": ["full_attention"]},
        {"num_hidden_layers": 2, "hybrid_override_pattern": "M?"},
        {"num_hidden_layers": 2, "attn_type_list": [1, 2]},
        {"num_hidden_layers": 2, "hybrid_layer_pattern": [0, True]},
        {"num_hidden_layers": 2, "block_configs": [{"attention": {"n_heads_in_group": 8}}, {"block_type": "mamba"}]},
        {"num_hidden_layers": 2, "block_configs": [{"attention": {"n_heads_in_group": 8}}]},
        {"num_hidden_layers": 2, "num_key_value_heads": [8, "x"]},
        {"num_hidden_layers": 2, "num_key_value_heads": [8]},
        {"num_hidden_layers": 2, "linear_attn_config": {"kda_layers": [1], "full_attn_layers": []}},
        {"num_hidden_layers": 2, "compress_ratios": [4, 128]},
        {"num_hidden_layers": 2, "compress_ratios": "x", "head_dim": 512, "sliding_window": 128},
        {"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2, "attention_other_setting": {
            "attention_type": "sliding_attention"}},
        {"num_hidden_layers": 2, "per_layer_config": {"0": {}}},
        {"num_hidden_layers": 2, "mamba_d_state": 16, "mamba_d_conv": 4},  # which layers?
        {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},  # how large a state?
        {"num_hidden_layers": 2, "layer_types": ["recurrent", "attention"], "lru_width": 2560},
        {"num_hidden_layers": 2, "model_type": "rwkv7"},
        {"num_hidden_layers": 2, "model_type": "longcat_flash"},
        {"num_hidden_layers": 2, "is_encoder_decoder": True},  # how long is what it reads?
        {"num_hidden_layers": 2_000_000_000},
    ],
)  # fmt: skip
def test_what_is_not_known_is_never_guessed(config: dict[str, Any]) -> None:
    facts = read({"num_attention_heads": 8, "head_dim": 64, "hidden_size": 512} | config)
    assert facts.unknown
    assert cache_bytes_per_token(facts, 2) is None
    assert cache_per_gpu(facts, ONE, Workload(CONTEXT, 1, 2, 1, 1)) is None


def test_weights_in_another_repository_are_noticed() -> None:
    ultravox = {
        "architectures": ["UltravoxModel"], "model_type": "ultravox", "text_model_id": "meta-llama/Llama-3.1-8B",
        "text_config": {"model_type": "llama", "num_hidden_layers": 32},
    }  # fmt: skip
    assert read(ultravox).elsewhere == "text_model_id"
    assert read(ultravox | {"text_model_id": None}).elsewhere is None


def test_the_heads_of_a_degree_divide_those_of_every_layer() -> None:
    facts = read({"num_hidden_layers": 2, "num_attention_heads_per_layer": [48, 64], "num_attention_heads": 48})
    assert facts.heads == 16
    assert read(HYBRIDS["Mamba-Codestral-7B"]).heads == 128  # those of its states
    assert read(HYBRIDS["Mamba-Codestral-7B"]).kv_heads is None


ATTENTION = {
    "model_type": "llama", "num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
MAMBA = {"mamba_d_state": 128, "mamba_d_conv": 4, "mamba_n_heads": 16, "mamba_d_head": 64}


@pytest.mark.parametrize(
    "fields",
    [
        {"num_kv_shared_layers": 8},
        {"num_kv_shared_layers": 2**30},
        MAMBA | {"attn_layer_indices": ["3"]},
        MAMBA | {"attn_layer_indices": [8]},
        MAMBA | {"attn_layer_indices": [-1]},
        MAMBA | {"attn_layer_indices": [3, None]},
        MAMBA | {"attn_layer_indices": [True]},
        MAMBA | {"attn_layer_indices": [3], "num_hidden_layers": None},
        MAMBA | {"attn_layer_indices": [3], "num_hidden_layers": "8"},
        {"model_type": "mamba2", "num_hidden_layers": None},
    ],
)
def test_layers_that_do_not_add_up_are_unknown(fields: dict[str, Any]) -> None:
    config = {name: value for name, value in (ATTENTION | fields).items() if value is not None}
    if isinstance(config.get("num_hidden_layers"), str) or "mamba_d_state" in config:
        config["model_type"] = "bamba"  # without defaults
    assert with_config(BARE, config).unknown


@pytest.mark.parametrize(("group", "kv_heads"), [(4, 2), (3, 3), (8, 1), (16, 1), (2**30, 1)])
def test_a_group_of_heads_that_does_not_divide_them_keeps_no_less(group: int, kv_heads: int) -> None:
    blocks = [{"attention": {"n_heads_in_group": group}}] * 8
    facts = with_config(BARE, ATTENTION | {"block_configs": blocks})
    assert cache_bytes_per_token(facts, 1) == 8 * kv_heads * 2 * 64
