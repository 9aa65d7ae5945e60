"""Makes a tiny Llama: random weights, a tokenizer of single bytes, a chat template.

An interpreter with torch and transformers runs it as a program: `python tiny_llama.py FOLDER`.
"""

import sys
from pathlib import Path
from typing import Final

HIDDEN: Final = 256  # vLLM on the CPU wants heads of 64
LAYERS: Final = 2
HEADS: Final = 4
_SPECIAL: Final = ("<s>", "</s>", "<unk>")
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def make_tiny_llama(folder: Path, *, seed: int = 7) -> Path:
    """Writes model and tokenizer into `folder` as `transformers` reads them, and returns it."""
    import torch  # noqa: PLC0415 - here, so that importing this module needs neither
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415 - as torch

    tokenizer = _tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder, safe_serialization=True)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer():
    """One token per byte: any text has tokens, any tokens are text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415 - as torch
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - as torch

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate((*_SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        chat_template=_CHAT_TEMPLATE,
    )


if __name__ == "__main__":
    make_tiny_llama(Path(sys.argv[1]))
