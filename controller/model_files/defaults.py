"""Transformers' defaults for fields missing in a config.json, by `model_type`.

A nested config mostly omits fields that equal its class's defaults, so multimodal models cannot be read without these.
Source: each type's `configuration_*.py` of github.com/huggingface/transformers.
"""

from collections.abc import Mapping
from typing import Final

DEFAULTS: Final[Mapping[str, Mapping[str, int]]] = {
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    },
    "qwen2": {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768,
    },
    "gemma2": {"vocab_size": 256000, "head_dim": 256, "max_position_embeddings": 8192},
    "gemma3_text": {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
    },
}  # fmt: skip
VISION_HEADS: Final[Mapping[str, int]] = {
    "clip_vision_model": 12, "siglip_vision_model": 12, "pixtral": 16, "qwen2_5_vl": 16, "qwen2_vl": 16,
}  # fmt: skip
# Vision towers that servers do not split if their heads cannot be divided: InternViT-6B has 25 heads (`_init_attn` in
# intern_vit.py of vLLM).
WHOLE_VISION_TOWERS: Final = frozenset({"intern_vit_6b"})
# Period of the layers with full attention among layers with a window, for files that do not give it. By Transformers'
# and llama.cpp's names of the types.
FULL_ATTENTION_PERIOD: Final[Mapping[str, int]] = {
    "gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4, "llama4_text": 4, "llama4": 4, "gpt_oss": 2, "gpt-oss": 2,
}  # fmt: skip
# Types whose layers all have the window of the file.
ALL_WINDOWED: Final = frozenset({"mistral", "mixtral", "phi3", "phimoe", "starcoder2"})
# Types with a latent, for which servers still cache complete heads: vLLM's list of models with a latent cache
# (`is_deepseek_mla` in its transformers_utils/model_arch_config_convertor.py) lacks them.
WHOLE_HEAD_CACHE: Final = frozenset({"minicpm3"})
# Types without attention, whose heads are those of a state.
ATTENTION_FREE: Final = frozenset({"mamba", "mamba2", "falcon_mamba"})
# Types that return a vector or a score instead of generating tokens. Names of both, as above.
ENCODERS: Final = frozenset({
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "eurobert",
    "gemma-embedding", "gte", "jina-bert-v2", "jina-bert-v3", "llama-embed", "mobilebert", "modern-bert", "modernbert",
    "mpnet", "neo-bert", "new", "nomic-bert", "nomic-bert-moe", "nomic_bert", "roberta", "roformer", "t5encoder",
    "xlm-roberta", "xlm-roberta-xl",
})  # fmt: skip
