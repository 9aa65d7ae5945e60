"""Facts of a model in GGUF files, in the common form of all models."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gguf.constants import Keys

from controller.domain.model_facts import ModelFacts
from controller.model_files.config_fields import is_count, is_word
from controller.model_files.defaults import ENCODERS
from controller.model_files.files import MetadataError, ModelFiles, refuse_pointer, where
from controller.model_files.gguf_header import ArrayLength, GgufHeader, Value, missing, read_header
from controller.model_files.gguf_layers import with_layers

MAX_PARTS: Final = 1024
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<parts>\d{5})\.gguf")
_BLOCK: Final = re.compile(r"blk\.(\d{1,6})\.")
_SUFFIX: Final = ".gguf"


def gguf_facts(files: ModelFiles, name: str, to_host: Sequence[Mapping[str, Any]] | None = None) -> ModelFacts:
    """Reads a model of one file, or of all parts if `name` is one of several.

    Args:
        files: those of the model's folder.
        name: of its first file.
        to_host: the rules by which tensors stay in the host's memory, as `by_layer` reads them; None: do not measure.

    Raises:
        MetadataError: retryable if a file is missing, terminal if one is corrupt or not a model; names the file.
    """
    headers = _headers(files, name)
    values = headers[0].values
    kind = values.get(Keys.General.TYPE, "model")
    if kind != "model":
        raise MetadataError(f"{where(files, name)}: type is {kind!r}, must be 'model'", retryable=False)
    facts = _with_values(_of_tensors(files, name, headers), values)
    return facts if to_host is None else by_layer(facts, [h.tensors for h in headers], to_host)


def by_layer(
    facts: ModelFacts, headers: Sequence[Mapping[str, int]], to_host: Sequence[Mapping[str, Any]]
) -> ModelFacts:
    """Adds the bytes of each layer, and those that stay in the host's memory.

    Args:
        facts: of the model.
        headers: bytes of each tensor by name, of each file.
        to_host: rules, each with a `pattern` that is searched in a tensor's name, and optionally `layers`: only that
            many of the first layers. llama.cpp's loader searches in the same way.
    """
    layers = facts.layers or 0
    whole, kept, other = [0] * layers, [0] * layers, 0
    rules = [(re.compile(rule["pattern"]), rule.get("layers")) for rule in to_host]
    for name, size in (one for header in headers for one in header.items()):
        block = _BLOCK.match(name)
        layer = int(block[1]) if block is not None else None
        on_host = any(
            pattern.search(name) and (first is None or (layer is not None and layer < first))
            for pattern, first in rules
        )
        if layer is None or layer >= layers:
            other += size * on_host
            continue
        whole[layer] += size
        kept[layer] += size * on_host
    return replace(facts, layer_bytes=tuple(whole), host_layer_bytes=tuple(kept), host_other_bytes=other)


def gguf_bytes(files: ModelFiles, name: str) -> int:
    """Bytes of the tensors, of any type of file, such as an adapter. Raises MetadataError: as `gguf_facts`."""
    return _of_tensors(files, name, _headers(files, name)).weight_bytes


def only_model(files: ModelFiles) -> str | None:
    """The first file of the only GGUF model in the folder; None if there is none.

    Raises:
        MetadataError: terminal, if there are several.
    """
    found = sorted(n for n in files.sizes if n.endswith(_SUFFIX) and not n.startswith("mmproj"))
    first = [n for n in found if (part := _PART.fullmatch(n)) is None or int(part["number"]) == 1]
    if len(first) > 1:
        raise MetadataError(
            f"{files.name} holds several GGUF models ({', '.join(n[:80] for n in first[:4])} ...); name one of them as"
            " model: gguf:/file",
            retryable=False,
        )
    return first[0] if first else None


def _headers(files: ModelFiles, name: str) -> list[GgufHeader]:
    part = _PART.fullmatch(name)
    names = [name]
    if part is not None:
        parts = int(part["parts"])
        if parts > MAX_PARTS:
            raise MetadataError(f"{where(files, name)} is one of {parts} parts, more than {MAX_PARTS}", retryable=False)
        names = [f"{part['stem']}-{n:05}-of-{parts:05}{_SUFFIX}" for n in range(1, parts + 1)]
    for each in names:
        if each not in files.sizes:
            raise missing(files, each)
        refuse_pointer(files, each)
    return [read_header(files, each) for each in names]


def _of_tensors(files: ModelFiles, name: str, headers: list[GgufHeader]) -> ModelFacts:
    dtypes: Counter[str] = Counter()
    for header in headers:
        dtypes.update(header.dtypes)
    if not dtypes.total():
        raise MetadataError(f"{where(files, name)} holds no tensors; replace the file", retryable=False)
    parameters = sum(header.parameters for header in headers)
    return ModelFacts("gguf", dtypes.total(), dict(dtypes), parameters, revision=files.revision)


def _with_values(facts: ModelFacts, values: Mapping[str, Value]) -> ModelFacts:
    stated = values.get(Keys.General.ARCHITECTURE)
    arch = stated if isinstance(stated, str) and is_word(stated) else ""

    def value(key: str) -> Value:
        return values.get(key.format(arch=arch))

    def count(*keys: str) -> int | None:
        return next((most for key in keys if (most := _most(value(key)))), None)

    heads, hidden = count(Keys.Attention.HEAD_COUNT), count(Keys.LLM.EMBEDDING_LENGTH)
    # Files from before llama.cpp cached latents lack these keys: for them it caches whole heads.
    latent = count(Keys.Attention.KEY_LENGTH_MLA) is not None
    head_dim = count(Keys.Attention.KEY_LENGTH_MLA, Keys.Attention.KEY_LENGTH)
    v_head_dim = count(Keys.Attention.VALUE_LENGTH_MLA, Keys.Attention.VALUE_LENGTH)
    if head_dim is None and heads and hidden:
        head_dim = hidden // heads or None
    tokens = values.get(Keys.Tokenizer.LIST)
    facts = replace(
        facts,
        architectures=(arch,) if arch else (),
        model_type=arch,
        hidden_size=hidden,
        intermediate_size=count(Keys.LLM.FEED_FORWARD_LENGTH),
        heads=heads,
        kv_heads=count(Keys.Attention.HEAD_COUNT_KV) or heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim if v_head_dim != head_dim else None,
        kv_lora_rank=count(Keys.Attention.KV_LORA_RANK) if latent else None,
        qk_rope_head_dim=count(Keys.Rope.DIMENSION_COUNT) if latent else None,
        vocab=count(Keys.LLM.VOCAB_SIZE) or (tokens.items if isinstance(tokens, ArrayLength) else None),
        context_length=count(Keys.LLM.CONTEXT_LENGTH),
        experts=count(Keys.LLM.EXPERT_COUNT),
        experts_per_token=count(Keys.LLM.EXPERT_USED_COUNT),
        encoder=arch in ENCODERS or value(Keys.Attention.CAUSAL) is False,
    )
    layers = count(Keys.LLM.BLOCK_COUNT)
    return facts if layers is None else with_layers(facts, layers, arch, values)


def _most(value: Value) -> int | None:
    """A number above zero; the largest where there is one per layer."""
    if isinstance(value, tuple):
        value = max((n for n in value if is_count(n)), default=None)
    return value if isinstance(value, int) and is_count(value) else None
