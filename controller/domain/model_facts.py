"""The facts in a model's files, from which every estimate starts.

None means that the files do not state a fact; unknown is never zero.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the weights are quantized: `awq`, `gptq`, `fp8`, `compressed-tensors`, ...; GGUF's own types are dtypes."""

    method: str
    bits: int | None = None  # per weight


@dataclass(frozen=True, slots=True)
class CachedLayers:
    """Layers that keep entries of one size for the tokens of a sequence."""

    layers: int  # number of them
    heads: int  # of keys and values
    size: int  # elements of one entry in one head, keys and values together
    window: int | None = None  # tokens; None: all of the context
    tokens: int | None = None  # fixed entries of a sequence, such as an encoder's output; None: the context's
    ratio: int = 1  # tokens that share one entry
    element_bytes: int | None = None  # fixed size; None: by the type of the cache
    divided: bool = True  # whether tensor parallelism divides the heads


@dataclass(frozen=True, slots=True)
class States:
    """The states that layers keep of each running sequence of any length: of a convolution, and a recurrent state."""

    layers: int  # number of them
    conv: int = 0  # elements of a convolution's state that tensor parallelism divides, without groups
    groups: int = 0  # of inputs; each GPU keeps at least one
    group_conv: int = 0  # elements of the convolution's state for each group
    recurrent: int = 0  # elements of the recurrent state in one layer
    kernel: int = 0  # inputs that a convolution keeps
    recurrent_dtype: str | None = None  # of the recurrent state; None: that of the convolution


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model.

    Attributes:
        weight_bytes: stored bytes of the tensors of one format; two formats of the same weights count once.
        dtypes: stored bytes by dtype (`BF16`, `F8_E4M3`, `I32`; of a GGUF file `Q4_K`, `F32`).
        parameters: elements of all tensors; packed quantized weights count as stored.
        dtype: the dtype in the config that weights are loaded as, such as `bfloat16`.
        heads, kv_heads, head_dim: of the language part. `v_head_dim` if values have another size than keys.
        full_layers: layers whose cache grows with the full context. `uncached_layers` have no cache of their own: they
            keep a state (linear attention, Mamba), use another layer's cache, or have no attention. All others use the
            sliding window.
        cached: the layers with a cache by size, if these differ; empty: the other fields describe all layers.
        states: of the layers that keep one for each running sequence.
        kv_lora_rank, qk_rope_head_dim: multi-head latent attention keeps these per token and layer instead of heads.
        index_head_dim: sparse attention also keeps an index key of this size.
        vision: it has a vision tower.
        vision_heads: attention heads of the vision tower, which tensor parallelism must divide too; None also if
            servers can divide any number.
        encoder: it generates no tokens, so it keeps no cache (embedding models and rerankers).
        pooling: by its files it answers with vectors or scores, whatever its architecture.
        bidirectional: tokens attend to later tokens, so a pooling model keeps no cache either.
        unknown: the part of the cache that the reader does not know, as text; None if it knows all.
        elsewhere: the repository, with the config's field, that holds a part of the weights; None: all are here.
        adapter_bytes: bytes of the tensors of its adapters (LoRA).
        revision: of a hub's model, the commit that was read.
        layer_bytes, host_layer_bytes: stored bytes of each layer, and those that flags keep in the host's memory. Empty
            unless the analysis was to read them.
        host_other_bytes: stored bytes that flags keep in the host's memory of tensors outside the layers.
        draft: of the model that drafts tokens for it.
    """

    format: Literal["safetensors", "bin", "gguf"]
    weight_bytes: int
    dtypes: Mapping[str, int] = field(default_factory=dict)
    parameters: int | None = None
    architectures: tuple[str, ...] = ()
    model_type: str = ""
    dtype: str | None = None
    layers: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    vocab: int | None = None
    vision: bool = False
    vision_heads: int | None = None
    context_length: int | None = None
    sliding_window: int | None = None
    full_layers: int | None = None
    uncached_layers: int = 0
    cached: tuple[CachedLayers, ...] = ()
    states: States | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    index_head_dim: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    quantization: Quantization | None = None
    encoder: bool = False
    pooling: bool = False
    bidirectional: bool = False
    unknown: str | None = None
    elsewhere: str | None = None
    adapter_bytes: int = 0
    revision: str | None = None
    layer_bytes: tuple[int, ...] = ()
    host_layer_bytes: tuple[int, ...] = ()
    host_other_bytes: int = 0
    draft: "ModelFacts | None" = None


COMMITS: Final = "commits"  # next to the facts of an analysis: the commit of each model that it read on the hub


def facts_to_json(facts: ModelFacts) -> dict[str, Any]:
    return asdict(facts)


def facts_from_json(value: dict[str, Any]) -> ModelFacts:
    facts = ModelFacts(**{name: field_value for name, field_value in value.items() if name != COMMITS})
    quantization, draft, states = value.get("quantization"), value.get("draft"), value.get("states")
    return replace(
        facts,
        architectures=tuple(facts.architectures),
        quantization=Quantization(**quantization) if quantization else None,
        cached=tuple(CachedLayers(**layers) for layers in value.get("cached", ())),
        states=States(**states) if states else None,
        layer_bytes=tuple(facts.layer_bytes),
        host_layer_bytes=tuple(facts.host_layer_bytes),
        draft=facts_from_json(draft) if draft else None,
    )
