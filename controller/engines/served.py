"""What vLLM and SGLang have in common: models from safetensors, measured for each split, on NVIDIA GPUs under Linux.

They differ in data (`ServerTable`) and in their command lines, which are the subclasses' own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from controller.domain.model_facts import ModelFacts, facts_from_json
from controller.domain.placement import Compatibility, Need, Share
from controller.domain.splits import Split, splits_to_measure
from controller.engines.base import Analysis, SingleEngine, SpecError
from controller.engines.capability import demanded_capability
from controller.engines.flags import figure, flags, stated, text
from controller.engines.memory import (
    DTYPE_BYTES,
    UNKNOWN_CACHE_SHARE,
    Workload,
    activations,
    cache_bytes_per_token,
    cache_per_gpu,
    loaded_bytes,
    mib,
    weights_per_gpu,
)
from controller.engines.source import model_analysis, refuse_other_models
from schemas.manifest.deployment import DeploymentSpec
from schemas.reasons import Reason

GPU_COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 16)  # of one worker; which of them divide the model is for it to say
# What nobody stated: enough for a few people at once, and long enough for a conversation. Where that fits nowhere, one
# such sequence at a time is better than no model.
DEFAULT_CONTEXT: Final = 8192
DEFAULT_SEQUENCES: Final = (16, 1)

# Beside what the server accounts for itself, MiB per GPU. A CUDA context of PyTorch takes about 400 since modules are
# loaded lazily (https://github.com/pytorch/pytorch/issues/109888); libraries' workspaces come on top.
CONTEXT_MIB: Final = 576
# Captured graphs were 130 for a 0.6B model (https://github.com/generative-computing/mellea/pull/416); they grow with
# the number of layers, so four times as much for large ones.
GRAPHS_MIB: Final = 512
# Buffers of NCCL and of the custom all-reduce, per rank: vLLM logged 0.33 GiB with tp 2
# (https://github.com/vllm-project/vllm/issues/14452), and 2.1 GiB is known of tp 8 on A100.
COLLECTIVES_MIB: Final = 256
_MOST_RANKS: Final = 8  # that share a worker's buffers
# What passes through a vision tower when the largest image that a model takes is profiled. Allowed for, not derived:
# towers differ widely. 16 GiB were too few for Qwen2.5-VL-7B in 4 bits (https://github.com/QwenLM/Qwen3-VL/issues/1224).
IMAGES_MIB: Final = 3072
# Server, scheduler and one process per GPU, each with PyTorch. Guessed at 1 GiB each for the usual few of them.
HOST_RUNTIME_MIB: Final = 4096
_FP8_CACHE: Final = 1.0
_READ: Final = ("dtype", "quantization", "kv-cache-dtype", "mm-encoder-tp-mode", "mm-enable-dp-encoder")
# Flags that engines of other kinds have too.
_ANYBODYS: Final = frozenset({"host", "port", "model", "revision", "device", "config"})
_VOCABULARY_PAD: Final = 64  # both pad the vocabulary to a multiple of it before they divide it


@dataclass(frozen=True, slots=True)
class ServerTable:
    """A server as data. Flags without dashes, the server's own name of each first.

    Attributes:
        capabilities: least compute capability by quantisation method, `fp8-weights`, `fp8-cache` and `bfloat16`.
        unsupported: architectures that it is known not to run, with what is known of it.
        reserved: flags that are not the user's, with what to do instead.
        repeated: flags that are written once for each value; all others take several.
        negated: whether a switch has a `--no-` form.
        windows: whether its cache keeps of layers with a sliding window no more than that.
        no_windows: the switch after which it does not.
    """

    compatibility: Compatibility
    capabilities: Mapping[str, tuple[int, int]]
    unsupported: Mapping[str, str]
    reserved: Mapping[str, str]
    context: tuple[str, ...]
    sequences: tuple[str, ...]
    batch_tokens: tuple[str, ...]
    batch_tokens_default: int
    batch_sequences_default: int
    adapters: tuple[str, ...]
    repeated: frozenset[str] = frozenset()
    negated: bool = True
    windows: bool = True
    no_windows: str = ""

    @property
    def figures(self) -> frozenset[str]:
        """Those of the workload, which no two servers call alike."""
        return frozenset({*self.context, *self.sequences, *self.batch_tokens})

    @property
    def own_flags(self) -> frozenset[str]:
        """Those by which a user shows that he means this server, even where he may not set them."""
        return frozenset({*self.figures, *self.adapters, *self.reserved}) - _ANYBODYS

    def flags(self, spec: DeploymentSpec) -> list[str]:
        """The spec's args as this server reads them; raises SpecError naming the arg."""
        read = {*self.figures, *self.adapters, *_READ}
        return flags(spec, self.reserved, read, self.figures, self.repeated, negated=self.negated)


class ModelServer(SingleEngine):
    """One of the two."""

    name: str
    table: ServerTable

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises SpecError for models and args that cannot work."""
        refuse_other_models(spec, self.name, gguf=False)
        self.table.flags(spec)
        dtype = text(spec, "dtype")
        if dtype not in (None, "auto", *DTYPE_BYTES):
            raise SpecError(f"args.dtype: {dtype} is none that {self.name} knows; use one of {', '.join(DTYPE_BYTES)}")
        if spec.resources.gpus == 0:
            raise SpecError(
                f"resources.gpus: is 0, but {self.name} needs a GPU; leave it out, or use engine:"
                " transformers with args: {device: cpu}"
            )
        self._adapters(spec)

    def compatibility(self, spec: DeploymentSpec) -> Compatibility:  # noqa: ARG002 - what the model adds is in its need
        """The server's own table."""
        return self.table.compatibility

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:  # noqa: ARG002 - the model decides, not the spec
        """As many of one worker as could divide a model."""
        return GPU_COUNTS

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """Reads the model's facts, unless the user said how much memory of each GPU to take."""
        if isinstance(spec.resources.gpu_memory, int):
            return None
        return model_analysis(spec, self._adapters(spec))

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        """The need of each split that is worth a try, from the model's facts."""
        context, sequences = figure(spec, *self.table.context), figure(spec, *self.table.sequences)
        if result is None:
            given = ("memory as given by the user",)
            return Need(None, host_memory_mib=HOST_RUNTIME_MIB, notes=given, context=context, sequences=sequences)
        facts = facts_from_json(result)
        if refusal := self._refusal(facts):
            return Need(None, refused=(Reason.ENGINE_UNSUPPORTED,), notes=(refusal,))
        reckoned = context or min(facts.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
        turns = DEFAULT_SEQUENCES if sequences is None and context is None else (sequences or DEFAULT_SEQUENCES[0],)
        if facts.encoder:
            turns = turns[:1]
        shares = tuple(share for n in turns for share in self._shares(spec, facts, reckoned, n))
        vocab = facts.vocab
        return Need(
            memory_mib=shares[0].memory_mib * shares[0].gpus,
            host_memory_mib=HOST_RUNTIME_MIB,
            parts=shares[0].parts,
            heads=facts.heads,
            kv_heads=None if facts.kv_lora_rank is not None else facts.kv_heads,
            vocab=None if vocab is None else -(-vocab // _VOCABULARY_PAD) * _VOCABULARY_PAD,
            vision_heads=None if _tower_on_each(spec) else facts.vision_heads,
            notes=_notes(facts, reckoned, turns),
            shares=shares,
            compute_capability=demanded_capability(spec, facts, self.table.capabilities),
            # An encoder's need does not depend on them, and it may take less than its config says: its tokenizer's and
            # pooling's own files bound it too, and vLLM refuses to be told more.
            context=None if facts.encoder else reckoned,
            sequences=None if facts.encoder else turns[0],
        )

    def _refusal(self, facts: ModelFacts) -> str | None:
        if facts.format == "gguf":
            return f"{self.name} loads no GGUF files; use engine: llama-cpp"
        known = next((one for one in facts.architectures if one in self.table.unsupported), None)
        return None if known is None else f"{self.name} does not run {known}: {self.table.unsupported[known]}"

    def _shares(self, spec: DeploymentSpec, facts: ModelFacts, context: int, sequences: int) -> Iterator[Share]:
        dtype_bytes = _working_bytes(spec, facts)
        tokens = figure(spec, *self.table.batch_tokens) or self.table.batch_tokens_default
        workload = Workload(
            context=context,
            sequences=sequences,
            cache_bytes=_FP8_CACHE if (text(spec, "kv-cache-dtype") or "").startswith("fp8") else dtype_bytes,
            batch_tokens=tokens,
            batch_sequences=max(sequences, self.table.batch_sequences_default),
            # Of one sequence, or shared by several: SlidingWindowSpec and group_size in vLLM's sources (v1/kv_cache_*).
            beyond_windows=tokens,
            window_groups=True,
        )
        if not self.table.windows or stated(spec, (self.table.no_windows,)) is True:
            facts = replace(facts, sliding_window=None)
        total = loaded_bytes(facts, dtype_bytes)
        for split in splits_to_measure(spec, self.gpu_counts(spec)):
            if split.pp > (facts.layers or split.pp):
                continue
            cache = cache_per_gpu(facts, split, workload)
            parts = {
                "weights": mib(weights_per_gpu(facts, split, total)),
                "adapters": mib(facts.adapter_bytes / split.tp),
                "cache": mib(total * UNKNOWN_CACHE_SHARE / (split.tp * split.pp) if cache is None else cache),
                "activations": mib(activations(facts, workload, dtype_bytes)),
                "images": IMAGES_MIB if facts.vision else 0,
                **outside_parts(split),
            }
            parts = {name: size for name, size in parts.items() if size}
            yield Share(*split.degrees, sum(parts.values()), parts, sequences=None if facts.encoder else sequences)

    def _adapters(self, spec: DeploymentSpec) -> tuple[str, ...]:
        """Where the adapters that the args name are.

        Raises:
            SpecError: an entry is not of the form that the servers take.
        """
        value = stated(spec, self.table.adapters)
        found = []
        for entry in value if isinstance(value, list) else [] if value is None else [value]:
            name, _, path = str(entry).partition("=")
            if not name or not path:
                raise SpecError(f"args.{self.table.adapters[0]}: write each as name=/folder or name=org/repository")
            found.append(path)
        return tuple(found)


def outside_parts(split: Split) -> dict[str, int]:
    """MiB of each GPU that these servers take beside what they are told that they may take."""
    ranks = split.tp * split.pp
    collectives = COLLECTIVES_MIB * min(ranks, _MOST_RANKS) if ranks > 1 else 0
    return {"context": CONTEXT_MIB, "graphs": GRAPHS_MIB, "collectives": collectives}


def _tower_on_each(spec: DeploymentSpec) -> bool:
    """Whether the args have each GPU keep the whole vision tower: of vLLM, of SGLang."""
    return text(spec, "mm-encoder-tp-mode") == "data" or stated(spec, ("mm-enable-dp-encoder",)) is True


def _working_bytes(spec: DeploymentSpec, facts: ModelFacts) -> int:
    """Bytes of an element as both servers choose the type: as stated, else the config's, but half of 32 bits."""
    dtype = text(spec, "dtype")
    if dtype in DTYPE_BYTES:
        return DTYPE_BYTES[dtype]
    return min(DTYPE_BYTES.get(facts.dtype or "", 2), 2)


def _notes(facts: ModelFacts, context: int, turns: Sequence[int]) -> tuple[str, ...]:
    if facts.encoder:
        return ("an encoder keeps no key-value cache",)
    if cache_bytes_per_token(facts, 1) is None:
        return (
            "the model's files do not say how large its key-value cache is: a fifth of the weights is taken for it",
        )
    by_default = "" if len(turns) == 1 else f", by default, or for {turns[-1]} where that fits nowhere"
    return (f"key-value cache for {turns[0]} sequences of {context} tokens{by_default}",)
