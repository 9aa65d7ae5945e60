"""What llama-server keeps in the host's memory by its flags: layers, tensors by their names, the cache. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.model_facts import ModelFacts
from controller.engines.arguments.flags import stated, text
from controller.engines.base import SpecError
from schemas.manifest.deployment import DeploymentSpec

# The names of tensors that its flags mean (common/common.h of llama.cpp).
_EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE: Final = r"\.ffn_(up|down|gate)\."
_FIRST_LAYERS: Final = {"n-cpu-moe": _EXPERTS, "n-cpu-ffn": _DENSE}
_SWITCHES: Final = ("cpu-moe", "no-kv-offload", "kv-offload", "op-offload", "no-op-offload")
_TENSORS: Final = "override-tensor"
OFFLOAD_FLAGS: Final = frozenset({*_FIRST_LAYERS, *_SWITCHES, _TENSORS})
_LAYER_COUNT: Final = re.compile(r"[0-9]{1,6}")
_MAX_PATTERN: Final = 500
# Both libraries of regular expressions read these alike; what begins with (? or [[ they read differently.
_PLAIN: Final = re.compile(r"(?:[\w.^$|()*+?\[\]{}/: -]|\\[.dDwWsSbB|()\[\]{}*+?^$/-])+", re.ASCII)
_OWN_SYNTAX: Final = re.compile(r"\(\?(?!:)|\[\[|[*+?}]\+")


def host_rules(spec: DeploymentSpec) -> list[dict[str, Any]]:
    """Which tensors stay in the host's memory, for the analysis of the file; empty: none by name.

    A rule has a `pattern` that is searched in a tensor's name, and for the first layers alone their number `layers`.
    """
    rules: list[dict[str, Any]] = []
    if stated(spec, ("cpu-moe",)) is True:
        rules.append({"pattern": _EXPERTS})
    for name, pattern in _FIRST_LAYERS.items():
        if (count := text(spec, name)) is not None:
            rules.append({"pattern": pattern, "layers": int(count)})
    rules += [{"pattern": pattern} for pattern, _ in _overrides(spec) if readable(pattern)]
    return rules


def uses_host(spec: DeploymentSpec) -> bool:
    """Whether a part of the model or of its cache stays in the host's memory, in addition to whole layers."""
    return bool(host_rules(spec)) or cache_on_host(spec) or any(True for _ in _overrides(spec))


def cache_on_host(spec: DeploymentSpec) -> bool:
    """Whether the key-value cache stays in the host's memory."""
    return stated(spec, ("no-kv-offload",)) is True or stated(spec, ("kv-offload",)) is False


def computes_on_gpu(spec: DeploymentSpec) -> bool:
    """Whether large batches copy weights of the host to a GPU, which has a buffer for that."""
    return stated(spec, ("no-op-offload",)) is not True and stated(spec, ("op-offload",)) is not False


def unread_overrides(spec: DeploymentSpec) -> list[str]:
    """The patterns of `override-tensor` that the estimate cannot reckon."""
    return [pattern for pattern, _ in _overrides(spec) if not readable(pattern)]


def readable(pattern: str) -> bool:
    """Whether a pattern means the same to llama-server and to the analysis."""
    if len(pattern) > _MAX_PATTERN or not _PLAIN.fullmatch(pattern) or _OWN_SYNTAX.search(pattern):
        return False
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def check_offload(spec: DeploymentSpec) -> None:
    """Raises SpecError for values that llama-server does not take."""
    for name in _SWITCHES:
        if stated(spec, (name,)) not in (None, True, False):
            raise SpecError(f"args.{name}: must be true or false")
    for name in _FIRST_LAYERS:
        if (given := text(spec, name)) is not None and _LAYER_COUNT.fullmatch(given) is None:
            raise SpecError(f"args.{name}: must be a whole number of layers")
    for pattern, target in _overrides(spec):
        if not pattern or not target:
            raise SpecError(f"args.{_TENSORS}: write each rule as PATTERN=CPU, without a comma in the pattern")


def only_to_host(spec: DeploymentSpec) -> bool:
    """Whether `override-tensor` names no other target than the host's memory."""
    return all(target == "CPU" for _, target in _overrides(spec))


def _overrides(spec: DeploymentSpec) -> Iterator[tuple[str, str]]:
    """Each rule of `override-tensor`: pattern and target."""
    value = stated(spec, (_TENSORS,))
    for one in value if isinstance(value, list) else [] if value is None else [value]:
        for rule in str(one).split(","):
            pattern, _, target = rule.partition("=")
            yield pattern, target


@dataclass(frozen=True, slots=True)
class Residence:
    """Where a model is."""

    gpu_bytes: float  # of weights on the GPU that holds most
    gpu_layers: int  # on the GPU that holds most of them
    host_bytes: float  # of weights in the host's memory
    host_layers: int  # that are there as a whole
    largest_bytes: float  # of the layer with the most weights there


def residence(facts: ModelFacts, wanted: int | None, gpus: int) -> Residence:
    """Where the weights are if `wanted` of the layers (None: all) are spread evenly over the GPUs.

    The last layers are on GPUs, and the output counts as the very last one (load_tensors in llama-model.cpp). Layers
    whose sizes were not measured count alike.
    """
    layers = facts.layers or 0
    each: tuple[float, ...] = facts.layer_bytes or (facts.weight_bytes / (layers + 1),) * layers
    kept = facts.host_layer_bytes or (0,) * layers
    outside = facts.weight_bytes - sum(each)
    taken = layers + 1 if wanted is None else min(wanted, layers + 1)
    first = layers + 1 - taken
    sizes, counts = [0.0] * gpus, [0] * gpus
    for layer in range(first, layers):
        at = (layer - first) * gpus // taken
        sizes[at] += each[layer] - kept[layer]
        counts[at] += 1
    if taken:
        sizes[(layers - first) * gpus // taken] += outside - facts.host_other_bytes
    in_host = [*each[:first], *kept[first:]]
    other = facts.host_other_bytes if taken else outside
    return Residence(max(sizes), max(counts), sum(in_host) + other, min(first, layers), max(in_host, default=0.0))
