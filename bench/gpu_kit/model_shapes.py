"""The random models of the check: their sizes, tensors, config and tokenizer. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

SPECIAL: Final = ("<s>", "</s>", "<unk>")
_BYTES: Final = 256
CONTEXT: Final = 4096
_CHAT: Final = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama of this shape; `billions` is its nominal size, which names its deployment."""

    name: str
    billions: float
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int = 264  # the tokens below, filled up to a multiple of 8

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        kv = self.hidden // self.heads * self.kv_heads
        yield "model.embed_tokens.weight", (self.vocabulary, self.hidden)
        for layer in range(self.layers):
            at = f"model.layers.{layer}"
            yield f"{at}.input_layernorm.weight", (self.hidden,)
            yield f"{at}.self_attn.q_proj.weight", (self.hidden, self.hidden)
            yield f"{at}.self_attn.k_proj.weight", (kv, self.hidden)
            yield f"{at}.self_attn.v_proj.weight", (kv, self.hidden)
            yield f"{at}.self_attn.o_proj.weight", (self.hidden, self.hidden)
            yield f"{at}.post_attention_layernorm.weight", (self.hidden,)
            yield f"{at}.mlp.gate_proj.weight", (self.intermediate, self.hidden)
            yield f"{at}.mlp.up_proj.weight", (self.intermediate, self.hidden)
            yield f"{at}.mlp.down_proj.weight", (self.hidden, self.intermediate)
        yield "model.norm.weight", (self.hidden,)
        yield "lm_head.weight", (self.vocabulary, self.hidden)

    def parameters(self) -> int:
        total = 0
        for _, dimensions in self.tensors():
            size = 1
            for dimension in dimensions:
                size *= dimension
            total += size
        return total

    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
            "hidden_size": self.hidden, "intermediate_size": self.intermediate, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.hidden // self.heads, "vocab_size": self.vocabulary, "max_position_embeddings": CONTEXT,
            "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "use_cache": True,
            "bos_token_id": 0, "eos_token_id": 1,
        }  # fmt: skip


FULL: Final = (
    Shape("m01", 0.1, hidden=768, layers=14, heads=12, kv_heads=4, intermediate=2304),
    Shape("m05", 0.5, hidden=1280, layers=26, heads=20, kv_heads=4, intermediate=3840),
    Shape("m3", 3.0, hidden=2560, layers=40, heads=20, kv_heads=4, intermediate=7680),
)
# For a host without CUDA: an answer takes a moment there too.
SMALL: Final = (
    Shape("m01", 0.0001, hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128),
    Shape("m05", 0.0005, hidden=128, layers=2, heads=4, kv_heads=2, intermediate=256),
    Shape("m3", 0.003, hidden=256, layers=2, heads=4, kv_heads=2, intermediate=512),
)


def byte_alphabet() -> list[str]:
    """The character for each byte, as byte-level tokenizers write it: printable bytes are themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (number for number in range(_BYTES) if number not in printable)
    moved = {number: _BYTES + place for place, number in enumerate(others)}
    return [chr(number if number in printable else moved[number]) for number in range(_BYTES)]


def tokenizer() -> dict[str, Any]:
    """`tokenizer.json`: a token for each byte, so that any text has tokens, and any tokens are text."""
    vocabulary = {token: place for place, token in enumerate((*SPECIAL, *byte_alphabet()))}
    added = [
        {"id": place, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for place, token in enumerate(SPECIAL)
    ]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
        "vocab": vocabulary, "merges": [],
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": model,
    }  # fmt: skip


def tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        "model_max_length": CONTEXT, "chat_template": _CHAT,
    }  # fmt: skip
