"""Facts from config.json files of public models. The figures are from the models' pages on huggingface.co."""

from typing import Any

import pytest

from controller.domain.model_facts import ModelFacts, Quantization, facts_from_json, facts_to_json
from controller.model_files.config import with_config

BARE = ModelFacts("safetensors", 1)


def read(config: dict[str, Any]) -> ModelFacts:
    return with_config(BARE, config)


def check(config: dict[str, Any], **expected: Any) -> None:
    found = read(config)
    assert {key: getattr(found, key) for key in expected} == expected
    assert facts_from_json(facts_to_json(found)) == found


def test_qwen3_8b() -> None:
    check(
        {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128, "hidden_size": 4096,
            "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36,
            "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "sliding_window": None,
            "torch_dtype": "bfloat16", "use_sliding_window": False, "vocab_size": 151936,
        },
        architectures=("Qwen3ForCausalLM",), model_type="qwen3", layers=36, full_layers=36, heads=32, kv_heads=8,
        head_dim=128, hidden_size=4096, intermediate_size=12288, vocab=151936, context_length=40960,
        dtype="bfloat16", sliding_window=None, experts=None, encoder=False, quantization=None, vision_heads=None,
    )  # fmt: skip


def test_qwen3_30b_a3b_has_heads_larger_than_its_share_of_the_hidden_size() -> None:
    check(
        {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 128, "hidden_size": 2048,
            "num_attention_heads": 32, "num_hidden_layers": 48, "num_key_value_heads": 4, "num_experts": 128,
            "num_experts_per_tok": 8, "moe_intermediate_size": 768, "vocab_size": 151936,
        },
        head_dim=128, kv_heads=4, experts=128, experts_per_token=8,
    )  # fmt: skip


LLAMA_31_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip


def test_llama_31_8b() -> None:
    check(LLAMA_31_8B, layers=32, full_layers=32, heads=32, kv_heads=8, head_dim=128, vocab=128256)


def test_mistral_7b_first_and_third_version() -> None:
    first = {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096,
        "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "sliding_window": 4096, "vocab_size": 32000,
    }  # fmt: skip
    check(first, sliding_window=4096, full_layers=0, layers=32, head_dim=128, context_length=32768)
    check(first | {"sliding_window": None, "vocab_size": 32768}, sliding_window=None, full_layers=32, vocab=32768)


def test_gemma_3_27b_omits_its_class_defaults() -> None:
    check(
        {
            "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16",
            "text_config": {
                "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504, "model_type": "gemma3_text",
                "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "sliding_window": 1024,
            },
            "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27},
        },
        architectures=("Gemma3ForConditionalGeneration",), model_type="gemma3", layers=62, full_layers=10,
        sliding_window=1024, heads=32, kv_heads=16, head_dim=128, vocab=262208, context_length=131072,
        vision_heads=16, dtype="bfloat16",
    )  # fmt: skip


def test_gemma_3_4b_omits_its_heads_too() -> None:
    check(
        {
            "model_type": "gemma3",
            "text_config": {
                "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
        },
        heads=8, kv_heads=4, head_dim=256, layers=34, full_layers=5,
    )  # fmt: skip


def test_deepseek_v3_has_a_latent_cache_and_fp8_weights() -> None:
    check(
        {
            "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
            "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
            "n_routed_experts": 256, "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
            "num_key_value_heads": 128, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "vocab_size": 129280, "torch_dtype": "bfloat16",
            "quantization_config": {
                "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
            },
        },
        kv_lora_rank=512, qk_rope_head_dim=64, head_dim=192, v_head_dim=128, heads=128, kv_heads=128, layers=61,
        full_layers=61, experts=256, experts_per_token=8, quantization=Quantization("fp8", 8), vocab=129280,
    )  # fmt: skip


def test_qwen25_vl_7b() -> None:
    check(
        {
            "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "hidden_size": 3584,
            "intermediate_size": 18944, "max_position_embeddings": 128000, "max_window_layers": 28,
            "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "sliding_window": 32768,
            "use_sliding_window": False, "vocab_size": 152064,
            "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
        },
        heads=28, kv_heads=4, head_dim=128, vision_heads=16, sliding_window=None, full_layers=28, vocab=152064,
    )  # fmt: skip


def test_qwen25_omni_7b_counts_its_thinker() -> None:
    check(
        {
            "architectures": ["Qwen2_5OmniModel"], "model_type": "qwen2_5_omni", "torch_dtype": "bfloat16",
            "talker_config": {"num_attention_heads": 12, "num_hidden_layers": 24, "vocab_size": 8448},
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "audio_config": {"num_attention_heads": 20, "num_hidden_layers": 32},
                "text_config": {
                    "hidden_size": 3584, "intermediate_size": 18944, "max_position_embeddings": 32768,
                    "model_type": "qwen2_5_omni_text", "num_attention_heads": 28, "num_hidden_layers": 28,
                    "num_key_value_heads": 4, "use_sliding_window": False, "sliding_window": 32768,
                    "vocab_size": 152064,
                },
                "vision_config": {"depth": 32, "model_type": "qwen2_5_omni_vision_encoder", "num_heads": 16},
            },
        },
        heads=28, kv_heads=4, layers=28, full_layers=28, vocab=152064, vision_heads=16, context_length=32768,
        dtype="bfloat16", model_type="qwen2_5_omni",
    )  # fmt: skip


def test_bge_base_is_an_encoder() -> None:
    check(
        {
            "architectures": ["BertModel"], "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072,
            "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12,
            "torch_dtype": "float32", "vocab_size": 30522,
        },
        encoder=True, heads=12, kv_heads=12, head_dim=64, dtype="float32", vocab=30522, context_length=512,
    )  # fmt: skip


def test_gpt_oss_20b_names_the_kind_of_every_layer() -> None:
    check(
        {
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 64, "hidden_size": 2880,
            "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"] * 12,
            "max_position_embeddings": 131072, "num_attention_heads": 64, "num_experts_per_tok": 4,
            "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32, "sliding_window": 128,
            "vocab_size": 201088,
            "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
        },
        layers=24, full_layers=12, sliding_window=128, experts=32, experts_per_token=4,
        quantization=Quantization("mxfp4", 4), head_dim=64,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        # Qwen2.5-7B-Instruct-AWQ and -GPTQ-Int4.
        ({"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm", "zero_point": True}, ("awq", 4)),
        ({"bits": 4, "desc_act": False, "group_size": 128, "quant_method": "gptq", "sym": True}, ("gptq", 4)),
        ({"bits": 8, "quant_method": "gptq"}, ("gptq", 8)),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 8}}}},
            ("compressed-tensors", 8),
        ),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}, ("compressed-tensors", 4)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, ("bitsandbytes", 4)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, ("bitsandbytes", 8)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("modelopt", 4)),
        ({"quant_method": "something-new"}, ("something-new", None)),
    ],
)
def test_quantisations(stated: dict[str, Any], expected: tuple[str, int | None]) -> None:
    assert read(LLAMA_31_8B | {"quantization_config": stated}).quantization == Quantization(*expected)
    assert read({"model_type": "llava", "text_config": LLAMA_31_8B | {"quantization_config": stated}}).quantization


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # A window in use, from the file's layer on: Qwen2.
        (
            {"model_type": "qwen2", "num_hidden_layers": 80, "use_sliding_window": True, "sliding_window": 4096,
             "max_window_layers": 70},
            {"full_layers": 70, "sliding_window": 4096},
        ),
        (
            {"model_type": "qwen2", "num_hidden_layers": 40, "use_sliding_window": True, "sliding_window": 4096},
            {"full_layers": 28},
        ),
        ({"model_type": "gemma2", "num_hidden_layers": 42, "sliding_window": 4096}, {"full_layers": 21}),
        (
            {"model_type": "exaone4", "num_hidden_layers": 64, "sliding_window": 9, "sliding_window_pattern": "LLLG"},
            {"full_layers": 16},
        ),
        (
            {"model_type": "qwen3_next", "num_hidden_layers": 48, "full_attention_interval": 4},
            {"full_layers": 12, "uncached_layers": 36, "sliding_window": None},
        ),
        (
            {"model_type": "lfm2", "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
            {"full_layers": 1, "uncached_layers": 2},
        ),
        (
            {"model_type": "nemotron_h", "num_hidden_layers": 4, "hybrid_override_pattern": "M-M*"},
            {"full_layers": 1, "uncached_layers": 3},
        ),
        (
            {"model_type": "llama4", "text_config": {"model_type": "llama4_text", "num_hidden_layers": 48,
             "attention_chunk_size": 8192}},
            {"full_layers": 12, "sliding_window": 8192},
        ),
        # GLM-5-Next's sparse layers keep everything.
        (
            {"num_hidden_layers": 2, "layer_types": ["deepseek_sparse_attention", "linear_attention"]},
            {"full_layers": 1, "uncached_layers": 1},
        ),
        ({"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "mamba"]}, {"uncached_layers": 2}),
        ({"model_type": "bamba", "num_hidden_layers": 32, "attn_layer_indices": [9, 18, 27]}, {"full_layers": 3}),
        (
            {"model_type": "mimo_v2_flash", "num_hidden_layers": 4, "hybrid_layer_pattern": [0, 1, 1, 1],
             "sliding_window": 128},
            {"full_layers": 1, "sliding_window": 128},
        ),
        ({"model_type": "new", "num_hidden_layers": 4, "sliding_window": 128}, {"full_layers": 4}),
        # Nemotron-NAS: key-value heads differ by layer, and some layers have none.
        (
            {"model_type": "nemotron-nas", "num_hidden_layers": 3, "num_attention_heads": 64, "hidden_size": 8192,
             "num_key_value_heads": None, "block_configs": [
                 {"attention": {"n_heads_in_group": 8, "no_op": False}},
                 {"attention": {"n_heads_in_group": None, "no_op": True}},
                 {"attention": {"n_heads_in_group": 16, "no_op": False}}]},
            {"kv_heads": 8, "full_layers": 2, "uncached_layers": 1, "head_dim": 128},
        ),
        # Whisper's name, and the smallest of several, which servers use.
        ({"model_type": "whisper", "max_source_positions": 1500, "max_target_positions": 448}, {"context_length": 448}),
        ({"max_position_embeddings": 131072, "seq_length": 8192}, {"context_length": 8192}),
        ({"n_ctx": 9, "text_config": {"model_type": "llama"}}, {"context_length": 9}),
        ({"text_config": {"model_type": "llama"}}, {"context_length": 2048}),
        # DeepSeek-V3.2.
        ({"kv_lora_rank": 512, "index_head_dim": 128, "index_topk": 2048}, {"index_head_dim": 128}),
        # MiniCPM3-4B: a latent, but vLLM keeps its 40 heads.
        (
            {"model_type": "minicpm3", "num_hidden_layers": 62, "num_attention_heads": 40, "num_key_value_heads": 40,
             "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "hidden_size": 2560},
            {"kv_lora_rank": None, "qk_rope_head_dim": None, "kv_heads": 40, "head_dim": 96},
        ),
        # Falcon-7B and 40B, MPT-30B's and ChatGLM3's own names.
        ({"n_head": 71, "hidden_size": 4544, "multi_query": True}, {"heads": 71, "kv_heads": 1, "head_dim": 64}),
        (
            {"num_attention_heads": 128, "num_kv_heads": 8, "multi_query": True, "new_decoder_architecture": True},
            {"kv_heads": 8},
        ),
        ({"d_model": 7168, "n_heads": 64, "attn_config": {"kv_n_heads": 8}}, {"kv_heads": 8, "head_dim": 112}),
        (
            {"num_attention_heads": 32, "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 128,
             "padded_vocab_size": 65024, "num_layers": 28, "seq_length": 8192},
            {"kv_heads": 2, "head_dim": 128, "vocab": 65024, "layers": 28, "context_length": 8192},
        ),
        # The language part's fields come before those of the whole config.
        ({"vocab_size": 5, "llm_config": {"num_attention_heads": 4, "vocab_size": 7}}, {"heads": 4, "vocab": 7}),
        ({"dtype": "bfloat16", "text_config": {"torch_dtype": "float32"}}, {"dtype": "bfloat16"}),
        ({"model_type": "llava", "text_config": {"model_type": "mistral"}}, {"kv_heads": 8, "layers": 32}),
        ({"vision_config": {"model_type": "pixtral"}}, {"vision_heads": 16, "vision": True}),
        # InternVL's tower of 25 heads is kept whole; DeepSeek-VL2 has no figure.
        ({"vision_config": {"model_type": "intern_vit_6b", "num_heads": 25}}, {"vision_heads": None, "vision": True}),
        ({"vision_config": {"model_name": "siglip", "width": 1152}}, {"vision_heads": None, "vision": True}),
        ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, {"encoder": True}),
        ({"model_type": "xlm-roberta"}, {"encoder": True}),
        # Fields of the wrong type count as missing.
        ({"num_attention_heads": "x", "vocab_size": -1, "text_config": None}, {"heads": None, "vocab": None}),
        ({"num_hidden_layers": True, "hidden_size": 1.5, "head_dim": 10**30}, {"layers": None, "head_dim": None}),
        ({"architectures": ["Llama\0", 3, "A" * 999, "Ok"], "model_type": ["x"]}, {"architectures": ("Ok",)}),
        ({"quantization_config": {"quant_method": ["x"]}, "dtype": {}}, {"quantization": None, "dtype": None}),
        ({}, {"heads": None, "layers": None, "full_layers": None, "model_type": ""}),
    ],
)  # fmt: skip
def test_other_names_and_forms(config: dict[str, Any], expected: dict[str, Any]) -> None:
    check(config, **expected)
