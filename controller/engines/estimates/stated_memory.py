"""The context and the number of sequences that fit a stated memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from controller.domain.placement import Need
from schemas.manifest.deployment import DeploymentSpec

LEAST_CONTEXT: Final = 1024  # a shorter context is useless, so the spec is refused
Size = Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The wanted tokens of a sequence and concurrent sequences, and the useful minimum of each."""

    context: int
    sequences: int
    least_context: int
    least_sequences: int = 1


def stated_memory(spec: DeploymentSpec) -> int | None:
    """MiB of each GPU that the spec states."""
    given = spec.resources.gpu_memory
    return given if isinstance(given, int) else None


def bounded(size: Size, bounds: Bounds, given_mib: int) -> tuple[int, int] | None:
    """The largest context, and with it the most sequences, whose memory fits; None if not even the minimum fits."""
    context = _most(bounds.least_context, bounds.context, lambda n: size(n, bounds.least_sequences) <= given_mib)
    if context is None:
        return None
    sequences = _most(bounds.least_sequences, bounds.sequences, lambda n: size(context, n) <= given_mib)
    return None if sequences is None else (context, sequences)


def _most(least: int, most: int, fits: Callable[[int], bool]) -> int | None:
    if not fits(least):
        return None
    low, high = least, max(least, most)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def too_small(spec: DeploymentSpec, need: Need) -> bool:
    """Whether the stated memory holds the model in none of the measured layouts."""
    given = stated_memory(spec)
    return given is not None and bool(need.shares) and all(share.least_mib > given for share in need.shares)


def too_small_note(spec: DeploymentSpec, need: Need) -> tuple[str, ...]:
    """The missing memory, if the stated memory holds the model in no layout."""
    given = stated_memory(spec)
    if given is None or not too_small(spec, need):
        return ()
    least = min(need.shares, key=lambda share: share.gpus)
    on = f"on {least.gpus} GPU{'s' * (least.gpus > 1)}"
    return (f"resources.gpu_memory is {given / 1024:.2f} GiB, the model needs {least.least_mib / 1024:.2f} GiB {on}",)
