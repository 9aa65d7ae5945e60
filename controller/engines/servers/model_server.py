"""Common part of vLLM and SGLang: models from safetensors, estimated per split, on NVIDIA GPUs under Linux.

The servers differ in data (`ServerTable`) and in their command lines, which the subclasses build.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from controller.domain.model_facts import ModelFacts, facts_from_json
from controller.domain.placement import Need, Share
from controller.domain.splits import Split, splits, splits_to_measure
from controller.engines.arguments.flags import figure, stated, text
from controller.engines.arguments.options import whole_gpus
from controller.engines.base import Analysis, Engine, SpecError, adapter_places
from controller.engines.estimates.capability import demanded_capability
from controller.engines.estimates.drafts import check_draft, draft_bytes
from controller.engines.estimates.memory import (
    DTYPE_BYTES,
    MIB,
    UNKNOWN_CACHE_SHARE,
    Workload,
    activations,
    cache_bytes_per_token,
    cache_per_gpu,
    loaded_bytes,
    mib,
    weights_per_gpu,
    without_windows,
)
from controller.engines.estimates.model_analysis import (
    model_analysis,
    reference_problem,
    refuse_other_models,
    unknown_need,
    unread_of,
)
from controller.engines.estimates.stated_memory import LEAST_CONTEXT, Bounds, bounded, stated_memory, too_small_note
from controller.engines.estimates.states import Cache
from controller.engines.servers.server_table import ServerTable
from schemas.manifest.deployment import DeploymentSpec
from schemas.placement_reasons import Reason

GPU_COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 16)  # of one worker; the model's dimensions decide which are possible
# Defaults: enough for a few users at once, and long enough for a conversation. If that fits nowhere, one sequence at a
# time is better than no model.
DEFAULT_CONTEXT: Final = 8192
DEFAULT_SEQUENCES: Final = (16, 1)

# MiB per GPU that the server itself does not account for. A CUDA context of PyTorch takes about 400 since modules are
# loaded lazily (https://github.com/pytorch/pytorch/issues/109888); libraries' workspaces come on top.
CONTEXT_MIB: Final = 576
# Captured graphs took 130 for a 0.6B model (https://github.com/generative-computing/mellea/pull/416). They grow with
# the number of layers, so four times as much allows for large models.
GRAPHS_MIB: Final = 512
# Buffers of NCCL and of the custom all-reduce, per rank: vLLM logged 0.33 GiB with tp 2
# (https://github.com/vllm-project/vllm/issues/14452), and 2.1 GiB is reported for tp 8 on A100.
COLLECTIVES_MIB: Final = 256
_MOST_RANKS: Final = 8  # that share a worker's buffers
# Activations of a vision tower while the largest image of a model is profiled. An allowance, not derived: towers differ
# widely. 16 GiB were too few for Qwen2.5-VL-7B in 4 bits (https://github.com/QwenLM/Qwen3-VL/issues/1224).
IMAGES_MIB: Final = 3072
# Server, scheduler and one process per GPU, each with PyTorch. A guess: 1 GiB each for a few processes.
HOST_RUNTIME_MIB: Final = 4096
_FP8_CACHE: Final = 1.0
STATED_DEADLINE_S: Final = 30.0
_LEAST_MODEL_MIB: Final = 512
_VOCABULARY_PAD: Final = 64  # both pad the vocabulary to a multiple of this before they divide it
_LANGUAGE_ONLY: Final = ("language-model-only", "language-only")
_TOWER_ONLY: Final = ("mm-encoder-only", "encoder-only")
_VISUAL: Final = ("image", "video")


class ModelServer(Engine):
    """A server with a `ServerTable`."""

    name: str
    table: ServerTable
    splits_models = True

    def validate(self, spec: DeploymentSpec) -> None:
        """Raises SpecError; RefusedFlagError only if there is no other problem."""
        self._check(spec)
        self.table.refuse_flags(spec)

    def _check(self, spec: DeploymentSpec) -> None:
        refuse_other_models(spec, self.name, gguf=False)
        self.table.flags(spec)
        dtype = text(spec, "dtype")
        if dtype not in (None, "auto", *DTYPE_BYTES):
            raise SpecError(f"args.dtype: must be auto or one of {', '.join(DTYPE_BYTES)}, got {dtype}")
        if spec.resources.gpus == 0:
            raise SpecError(
                f"resources.gpus: is 0, but {self.name} needs a GPU; leave it out, or use engine:"
                " transformers with args: {device: cpu}"
            )
        self._adapters(spec)
        self.table.host.check(spec)
        check_draft(self.table.draft(spec), spec, self.table.draft_flags)

    def gpu_counts(self, spec: DeploymentSpec) -> tuple[int, ...]:  # noqa: ARG002 - the model decides, not the spec
        return GPU_COUNTS

    def analysis(self, spec: DeploymentSpec) -> Analysis | None:
        """Reads the model's facts, for a shorter time if the spec states the memory: then they are not required."""
        work = model_analysis(spec, self._adapters(spec), self.table.draft(spec))
        return work if stated_memory(spec) is None else replace(work, deadline_s=STATED_DEADLINE_S)

    def need(self, spec: DeploymentSpec, result: Any) -> Need:
        context, sequences = figure(spec, *self.table.context), figure(spec, *self.table.sequences)
        facts = facts_from_json(result)
        if tower_only(spec):
            facts = replace(facts, encoder=True)
        if language_only(spec):
            facts = replace(facts, vision=False, vision_heads=None)
        pools = self.pools(spec, facts)
        if pools and facts.bidirectional:
            facts = replace(facts, encoder=True)
        if refusal := self._refusal(spec, facts):
            return Need(None, refused=(Reason.ENGINE_UNSUPPORTED,), notes=(refusal,))
        if unread := unread_of(facts):
            return self.assumed_as(spec, unread)
        length = context or min(facts.context_length or DEFAULT_CONTEXT, DEFAULT_CONTEXT)
        rounds = DEFAULT_SEQUENCES if sequences is None and context is None else (sequences or DEFAULT_SEQUENCES[0],)
        if pools and not facts.encoder:
            sequences, rounds = 1, (1,)  # it generates no tokens, so a sequence lasts one step
        if facts.encoder:
            rounds = rounds[:1]
        given = stated_memory(spec)
        if given is None:
            shares = tuple(share for n in rounds for share in self._shares(spec, facts, length, n))
        else:
            bounds = Bounds(length, sequences or self.table.batch_sequences_default, context or _least(length))
            shares = tuple(self._bounded_shares(spec, facts, bounds, given))
        shares = tuple(self._with_host(spec, share) for share in shares)
        vocab = facts.vocab
        need = Need(
            memory_mib=shares[0].memory_mib * shares[0].gpus,
            host_memory_mib=HOST_RUNTIME_MIB + max(share.host_memory_mib for share in shares),
            parts=shares[0].parts,
            heads=facts.heads,
            kv_heads=None if facts.kv_lora_rank is not None else facts.kv_heads,
            vocab=None if vocab is None else -(-vocab // _VOCABULARY_PAD) * _VOCABULARY_PAD,
            vision_heads=None if _tower_on_each(spec) else facts.vision_heads,
            notes=(
                *(_notes(facts, length, rounds, pools=pools) if given is None else ("memory as stated in the spec",)),
                *_host_notes(shares[0], facts),
            ),
            shares=shares,
            compute_capability=demanded_capability(spec, facts, self.table.capabilities),
            # An encoder's need does not depend on them. The files of its tokenizer and pooling may bound it below its
            # config, and vLLM refuses a larger length.
            context=None if facts.encoder else length,
            sequences=None if facts.encoder else rounds[0],
        )
        return replace(need, notes=(*need.notes, *too_small_note(spec, need)))

    def assumed(self, spec: DeploymentSpec) -> Need | None:
        """The degrees that follow from the GPUs, with stated memory or a stated number of exclusive GPUs."""
        given, exclusive = stated_memory(spec), whole_gpus(spec)
        if given is None and not (exclusive and (spec.gpus_stated is not None or spec.parallel.world is not None)):
            return None
        first = splits(spec, self.gpu_counts(spec))
        by_flags = self.table.host.host_mib(spec, first[0].gpus, (given or 0) * MIB)
        shares = tuple(
            # Less leaves no memory for a model.
            Share(*split.degrees, given or 0, least_mib=sum(outside_parts(split).values()) + _LEAST_MODEL_MIB)
            for split in first
            if split.gpus == first[0].gpus
        )
        degrees = f"tp {shares[0].tp}, pp {shares[0].pp}, dp {shares[0].dp}"
        return Need(
            None,
            host_memory_mib=HOST_RUNTIME_MIB + by_flags,
            notes=(f"assumed: {degrees}; that the model can be split so, and fits",),
            shares=shares,
            context=figure(spec, *self.table.context),
            sequences=figure(spec, *self.table.sequences),
        )

    def assumed_as(self, spec: DeploymentSpec, unread: str) -> Need:
        """The need of a model that is not fully read: as the spec states it, else unknown."""
        assumed = self.assumed(spec)
        if assumed is None:
            return unknown_need(unread)
        return replace(assumed, notes=(*assumed.notes, f"the model was not read: {unread}"))

    def pools(self, spec: DeploymentSpec, facts: ModelFacts) -> bool:  # noqa: ARG002 - for servers of pooling models
        """Whether the server answers with vectors or scores."""
        return False

    def cache(self, spec: DeploymentSpec, facts: ModelFacts, split: Split, workload: Workload) -> Cache | None:  # noqa: ARG002 - for servers with flags for it
        """The cache of one GPU; None if the model's files do not show its size."""
        size = cache_per_gpu(facts, split, workload)
        return None if size is None else Cache(size)

    def _refusal(self, spec: DeploymentSpec, facts: ModelFacts) -> str | None:  # noqa: ARG002 - as above
        if facts.format == "gguf":
            return f"{self.name} does not load GGUF files; use engine: llama-cpp"
        known = next((name for name in facts.architectures if name in self.table.unsupported), None)
        return None if known is None else f"{self.name} does not support {known}: {self.table.unsupported[known]}"

    def _bounded_shares(
        self, spec: DeploymentSpec, facts: ModelFacts, bounds: Bounds, given_mib: int
    ) -> Iterator[Share]:
        """Each split with the longest context and the most sequences that fit the stated memory."""
        for split in self._measured_splits(spec, facts):
            least = self._share(spec, facts, split, bounds.least_context, 1)

            def size(context: int, sequences: int, split: Split = split) -> int:
                return self._share(spec, facts, split, context, sequences).memory_mib

            fitting = bounded(size, bounds, given_mib)
            if fitting is None:
                yield least
                continue
            share = self._share(spec, facts, split, *fitting)
            context, sequences = (None, None) if facts.encoder else fitting
            yield replace(share, memory_mib=given_mib, least_mib=least.memory_mib, context=context, sequences=sequences)

    def _shares(self, spec: DeploymentSpec, facts: ModelFacts, context: int, sequences: int) -> Iterator[Share]:
        return (self._share(spec, facts, split, context, sequences) for split in self._measured_splits(spec, facts))

    def _measured_splits(self, spec: DeploymentSpec, facts: ModelFacts) -> Iterator[Split]:
        most = facts.layers
        return (split for split in splits_to_measure(spec, self.gpu_counts(spec)) if most is None or split.pp <= most)

    def _share(self, spec: DeploymentSpec, facts: ModelFacts, split: Split, context: int, sequences: int) -> Share:
        dtype_bytes = working_bytes(spec, facts)
        tokens = figure(spec, *self.table.batch_tokens) or self.table.batch_tokens_default
        workload = Workload(
            context=context,
            sequences=sequences,
            cache_bytes=_FP8_CACHE if (text(spec, "kv-cache-dtype") or "").startswith("fp8") else dtype_bytes,
            batch_tokens=tokens,
            batch_sequences=max(sequences, self.table.batch_sequences_default),
            # One window per sequence, allocated in groups: SlidingWindowSpec and group_size in vLLM (v1/kv_cache_*).
            beyond_windows=tokens,
            window_groups=True,
        )
        if not self.table.windows or stated(spec, (self.table.no_windows,)) is True:
            facts = without_windows(facts)
        total = loaded_bytes(facts, dtype_bytes)
        loads = (workload, replace(workload, sequences=1))
        full, single = (self.cache(spec, facts, split, load) for load in loads)
        cache, least_cache = (None if part is None else part.size for part in (full, single))
        weights, layer = weights_per_gpu(facts, split, total), 0.0
        kept = self.table.host.weight_bytes(spec, _in_layers(facts, split, total, weights))
        if kept and self.table.host.copies:
            layer = min(weights * split.pp / (facts.layers or 1), kept)
        drafts = [0.0, 0.0]
        if facts.draft is not None:
            drafts = [draft_bytes(facts.draft, split, load, dtype_bytes) for load in loads]
        parts = {
            "weights": mib(weights - kept),
            "offload": mib(layer),
            "adapters": mib(facts.adapter_bytes / split.tp),
            "draft": mib(drafts[0]),
            "cache": mib(total * UNKNOWN_CACHE_SHARE / (split.tp * split.pp) if cache is None else cache),
            "activations": mib(activations(facts, workload, dtype_bytes)),
            "images": IMAGES_MIB if facts.vision else 0,
            **outside_parts(split),
        }
        parts = {name: size for name, size in parts.items() if size}
        memory_mib = sum(parts.values())
        least_mib = memory_mib if cache is None or least_cache is None else memory_mib - mib(cache) + mib(least_cache)
        least_mib -= mib(drafts[0]) - mib(drafts[1])
        of_each = None if facts.encoder else sequences
        block = 0 if full is None else full.block
        return Share(*split.degrees, memory_mib, parts, sequences=of_each, least_mib=least_mib, block_bytes=block)

    def _with_host(self, spec: DeploymentSpec, share: Share) -> Share:
        """The share with the host's memory for its flags, assuming that all GPUs are on one worker."""
        cache_bytes = share.parts.get("cache", 0) * MIB
        return replace(share, host_memory_mib=self.table.host.host_mib(spec, share.gpus, cache_bytes))

    def _adapters(self, spec: DeploymentSpec) -> tuple[str, ...]:
        """The places of the adapters in `serving` and the args.

        Raises:
            SpecError: an entry does not have the form name=place, or both have adapters.
        """
        self.table.refuse_adapter_args(spec)
        places = adapter_places(spec)
        for place in places.values():
            if problem := reference_problem(place, on_hub=not place.startswith("/")):
                raise SpecError(f"serving.adapters: {problem}")
        value = stated(spec, self.table.adapters)
        found = []
        for entry in value if isinstance(value, list) else [] if value is None else [value]:
            name, _, path = str(entry).partition("=")
            if not name or not path or str(entry).lstrip().startswith("{"):
                raise SpecError(f"args.{self.table.adapters[0]}: write each as name=/folder or name=org/repository")
            if problem := reference_problem(path, on_hub=not path.startswith("/")):
                raise SpecError(f"args.{self.table.adapters[0]}: {problem}")
            found.append(path)
        return (*places.values(), *found)


def _in_layers(facts: ModelFacts, split: Split, total_bytes: int, weights: float) -> float:
    """Bytes of a GPU's weights in layers: embeddings and head stay on the GPU."""
    element = total_bytes / facts.parameters if facts.parameters else 2.0
    outside = 2 * (facts.vocab or 0) * (facts.hidden_size or 0) * element / split.tp
    return max(weights - outside, 0.0)


def _host_notes(share: Share, facts: ModelFacts) -> tuple[str, ...]:
    host = f"{share.host_memory_mib / 1024:.2f} GiB of host memory by its flags"
    draft = () if facts.draft is None else ("with a draft model",)
    return (*((host,) if share.host_memory_mib else ()), *draft)


def _least(context: int) -> int:
    return min(context, LEAST_CONTEXT)


def outside_parts(split: Split) -> dict[str, int]:
    """MiB of each GPU that these servers take outside their configured fraction."""
    ranks = split.tp * split.pp
    collectives = COLLECTIVES_MIB * min(ranks, _MOST_RANKS) if ranks > 1 else 0
    return {"context": CONTEXT_MIB, "graphs": GRAPHS_MIB, "collectives": collectives}


def _tower_on_each(spec: DeploymentSpec) -> bool:
    """Whether the args keep the complete vision tower on each GPU, by a flag of vLLM or SGLang."""
    return text(spec, "mm-encoder-tp-mode") == "data" or stated(spec, ("mm-enable-dp-encoder",)) is True


def working_bytes(spec: DeploymentSpec, facts: ModelFacts) -> int:
    """Bytes of an element in the servers' working type: the stated type, else the config's, with 32 bits as 16."""
    dtype = text(spec, "dtype")
    if dtype in DTYPE_BYTES:
        return DTYPE_BYTES[dtype]
    return min(DTYPE_BYTES.get(facts.dtype or "", 2), 2)


def _notes(facts: ModelFacts, context: int, rounds: Sequence[int], *, pools: bool) -> tuple[str, ...]:
    if facts.encoder:
        return ("an encoder keeps no key-value cache",)
    if pools:
        return (f"a pooling model generates nothing: key-value cache for one sequence of {context} tokens",)
    if cache_bytes_per_token(facts, 1) is None:
        return ("the model's files do not give the size of its key-value cache: estimated as a fifth of the weights",)
    by_default = "" if len(rounds) == 1 else f", by default, or for {rounds[-1]} where that fits nowhere"
    states = "" if facts.states is None else f", and states of {facts.states.layers} layers"
    return (f"key-value cache for {rounds[0]} sequences of {context} tokens{states}{by_default}",)


def language_only(spec: DeploymentSpec) -> bool:
    """Whether the server loads no tower and takes no images: by a switch, or by limits of 0."""
    if any(stated(spec, (name,)) is True for name in _LANGUAGE_ONLY) or stated(spec, ("enable-multimodal",)) is False:
        return True
    limits = _limits(text(spec, "limit-mm-per-prompt") or "")
    return all(limits.get(kind) == 0 for kind in _VISUAL)


def tower_only(spec: DeploymentSpec) -> bool:
    """Whether the server loads only the tower, which keeps no cache."""
    return any(stated(spec, (name,)) is True for name in _TOWER_ONLY)


def _limits(written: str) -> dict[str, int]:
    """Parses `{"image": 0}`, `{"image": {"count": 0}}` or `image=0,video=0`."""
    try:
        parsed = json.loads(written)
    except (ValueError, RecursionError):
        pairs = (pair.partition("=") for pair in written.split(","))
        return {kind.strip(): int(number) for kind, _, number in pairs if number.strip().isdecimal()}
    items = parsed.items() if isinstance(parsed, dict) else ()
    counts = ((kind, given.get("count") if isinstance(given, dict) else given) for kind, given in items)
    return {kind: number for kind, number in counts if isinstance(number, int) and not isinstance(number, bool)}
