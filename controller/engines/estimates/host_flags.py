"""Flags of vLLM and SGLang that keep weights or cache in the host's memory."""

import re
from dataclasses import dataclass
from typing import Final

from controller.engines.arguments.flags import stated, text
from controller.engines.base import SpecError
from controller.engines.estimates.memory import MIB
from schemas.manifest.deployment import DeploymentSpec

_SIZE: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
_GIB: Final = 2**30
_GB: Final = 10**9


@dataclass(frozen=True, slots=True)
class HostFlags:
    """The flags of one server; empty if it has none. Sizes are in GiB unless named otherwise."""

    weights: str = ""  # the part of each GPU's weights that stays in the host's memory
    copies: bool = False  # a layer of these weights is copied to the GPU for its computation
    each_gpu: tuple[str, ...] = ()  # further memory of the host for each GPU
    each_copy: tuple[str, ...] = ()  # further memory of the host for each parallel copy of the model
    unknown: frozenset[str] = frozenset()  # with these the server itself chooses the weights that stay there
    # switches of a second cache in the host's memory, whose size is `tier_gb` (GB for each GPU), or else `tier_ratio`
    # of the cache on the GPU
    tiers: tuple[str, ...] = ()
    tier_gb: str = ""
    tier_ratio: str = ""
    tier_default: float = 0.0  # of the ratio

    @property
    def sizes(self) -> tuple[str, ...]:
        """The flags whose value is a size or a ratio."""
        return tuple(filter(None, (self.weights, *self.each_gpu, *self.each_copy, self.tier_gb, self.tier_ratio)))

    def check(self, spec: DeploymentSpec) -> None:
        for name in self.sizes:
            _number(spec, name)

    def weight_bytes(self, spec: DeploymentSpec, offloadable: float) -> float:
        """Bytes of each GPU's weights that stay in the host's memory; `offloadable`: those that can."""
        if any(stated(spec, (name,)) is not None for name in self.unknown):
            return offloadable  # the spec states the memory then
        return min(_number(spec, self.weights) * _GIB, offloadable) if self.weights else 0.0

    def host_mib(self, spec: DeploymentSpec, gpus: int, cache_bytes: float) -> int:
        """MiB of the host's memory for an instance on `gpus` GPUs of one worker."""
        each = sum(_number(spec, name) for name in (self.weights, *self.each_gpu) if name) * _GIB
        if any(stated(spec, (name,)) is True for name in self.tiers):
            size = _number(spec, self.tier_gb) * _GB
            each += size or cache_bytes * (_number(spec, self.tier_ratio) or self.tier_default)
        copies = 1 if spec.parallel.dp == "auto" else spec.parallel.dp
        shared = sum(_number(spec, name) for name in self.each_copy) * _GIB * copies
        return -(-int(each * gpus + shared) // MIB)


def _number(spec: DeploymentSpec, name: str) -> float:
    """The value of a flag; 0 if it is not set. Raises SpecError if it is not a size."""
    value = text(spec, name)
    if value is None:
        return 0.0
    if not _SIZE.fullmatch(value):
        raise SpecError(f"args.{name}: must be a number such as 4 or 0.5, got {value}")
    return float(value)
