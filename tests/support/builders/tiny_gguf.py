"""Makes a tiny Llama as a GGUF file: random weights, a tokenizer of single bytes. No model server is needed for it."""

from pathlib import Path
from typing import Final

import numpy as np
from gguf import GGUFWriter, TokenType

HIDDEN: Final = 256
LAYERS: Final = 4
HEADS: Final = 4
KV_HEADS: Final = 2
FEED_FORWARD: Final = 512
CONTEXT: Final = 131_072  # long streams take seconds
_BYTES: Final = 256


def make_tiny_gguf(path: Path, *, seed: int = 7) -> Path:
    """Writes the model and returns its path. llama-server loads it in a second."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(_BYTES))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * _BYTES]
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: ")
    made = np.random.default_rng(seed)

    def add(name: str, *shape: int) -> None:
        tensor = np.ones(shape) if len(shape) == 1 else made.normal(0, 0.05, shape)
        writer.add_tensor(name, tensor.astype(np.float32 if len(shape) == 1 else np.float16))

    add("token_embd.weight", len(tokens), HIDDEN)
    add("output_norm.weight", HIDDEN)
    add("output.weight", len(tokens), HIDDEN)
    for layer in range(LAYERS):
        own = f"blk.{layer}"
        add(f"{own}.attn_norm.weight", HIDDEN)
        add(f"{own}.attn_q.weight", HIDDEN, HIDDEN)
        add(f"{own}.attn_k.weight", HIDDEN // HEADS * KV_HEADS, HIDDEN)
        add(f"{own}.attn_v.weight", HIDDEN // HEADS * KV_HEADS, HIDDEN)
        add(f"{own}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"{own}.ffn_norm.weight", HIDDEN)
        add(f"{own}.ffn_gate.weight", FEED_FORWARD, HIDDEN)
        add(f"{own}.ffn_up.weight", FEED_FORWARD, HIDDEN)
        add(f"{own}.ffn_down.weight", HIDDEN, FEED_FORWARD)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
