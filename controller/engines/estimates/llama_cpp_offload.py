"""Parts of a model that flags of llama-server keep in the host's memory: layers, tensors by name, the cache."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from controller.domain.model_facts import ModelFacts
from controller.engines.arguments.flags import stated, text
from controller.engines.base import SpecError
from schemas.manifest.deployment import DeploymentSpec

# The names of the tensors of its flags (common/common.h of llama.cpp).
_EXPERTS: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_DENSE: Final = r"\.ffn_(up|down|gate)\."
_FIRST_LAYERS: Final = {"n-cpu-moe": _EXPERTS, "n-cpu-ffn": _DENSE}
_SWITCHES: Final = ("cpu-moe", "no-kv-offload", "kv-offload", "op-offload", "no-op-offload")
_TENSORS: Final = "override-tensor"
OFFLOAD_FLAGS: Final = frozenset({*_FIRST_LAYERS, *_SWITCHES, _TENSORS})
_LAYER_COUNT: Final = re.compile(r"[0-9]{1,6}")
_MAX_PATTERN: Final = 500
# Both libraries of regular expressions read these alike, but not patterns with (? or [[.
_PLAIN: Final = re.compile(r"(?:[\w.^$|()*+?\[\]{}/: -]|\\[.dDwWsSbB|()\[\]{}*+?^$/-])+", re.ASCII)
_OWN_SYNTAX: Final = re.compile(r"\(\?(?!:)|\[\[|[*+?}]\+")


def host_rules(spec: DeploymentSpec) -> list[dict[str, Any]]:
    """The rules for tensors that stay in the host's memory, for the analysis of the file.

    A rule has a `pattern` that is searched in a tensor's name, and may have the number `layers` of the first layers.
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
    """Whether parts of the model or of its cache stay in the host's memory, apart from complete layers."""
    return bool(host_rules(spec)) or cache_on_host(spec) or any(True for _ in _overrides(spec))


def cache_on_host(spec: DeploymentSpec) -> bool:
    return stated(spec, ("no-kv-offload",)) is True or stated(spec, ("kv-offload",)) is False


def computes_on_gpu(spec: DeploymentSpec) -> bool:
    """Whether large batches copy weights of the host to a GPU, which needs a buffer for them."""
    return stated(spec, ("no-op-offload",)) is not True and stated(spec, ("op-offload",)) is not False


def unread_overrides(spec: DeploymentSpec) -> list[str]:
    """The patterns of `override-tensor` that the analysis cannot apply."""
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
    """Raises SpecError for values that llama-server does not accept."""
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
    """Whether `override-tensor` names only the host's memory as the target."""
    return all(target == "CPU" for _, target in _overrides(spec))


def _overrides(spec: DeploymentSpec) -> Iterator[tuple[str, str]]:
    """The rules of `override-tensor`: (pattern, target)."""
    value = stated(spec, (_TENSORS,))
    for rules in value if isinstance(value, list) else [] if value is None else [value]:
        for rule in str(rules).split(","):
            pattern, _, target = rule.partition("=")
            yield pattern, target


@dataclass(frozen=True, slots=True)
class Residence:
    """The places of the weights."""

    gpu_bytes: float  # of weights on the GPU that holds most
    gpu_layers: int  # on the GPU that holds most of them
    host_bytes: float  # of weights in the host's memory
    host_layers: int  # completely in the host's memory
    largest_bytes: float  # of the layer with the most weights in the host's memory


def residence(facts: ModelFacts, wanted: int | None, gpus: int) -> Residence:
    """The places of the weights if `wanted` of the layers (None: all) are spread evenly over the GPUs.

    The last layers are on GPUs, and the output counts as the very last layer (load_tensors in llama-model.cpp). Layers
    without a measured size count alike.
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
