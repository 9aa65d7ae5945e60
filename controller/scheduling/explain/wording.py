"""Why an instance is pending, in one line: the `message` of an explanation, in every view of it. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from schemas.api.explain import Explain, NearestMiss

# Short words for reason codes. Other codes are shown with blanks for underscores.
_SHORT: Final = {
    "need_gt_capacity": "VRAM",
    "need_gt_free": "VRAM",
    "host_memory": "RAM",
    "cpu": "CPU",
    "os_arch": "arch",
    "label_mismatch": "labels",
    "runtime_unsupported": "runtime",
    "engine_missing": "without the engine",
    "engine_unsupported": "engine",
    "driver_too_old": "driver",
    "compute_capability": "capability",
    "gpu_model": "GPU model",
    "mig_mode": "in MIG mode",
    "gpu_cordoned": "GPU cordoned",
    "gpu_unhealthy": "unhealthy",
    "gpu_in_use": "in use",
    "exclusive_conflict": "in shared use",
    "heads_indivisible": "heads",
    "vocab_indivisible": "vocabulary",
    "vision_indivisible": "vision heads",
    "mixed_accelerators": "mixed GPUs",
    "count_mismatch": "GPU count",
    "not_all_selected_ready": "other selected workers not ready",
}
_HELD: Final = "held"
_NOTHING: Final[Mapping[str, int]] = {}


def one_line(explain: Explain, held: Mapping[str, int] = _NOTHING, outside: Mapping[str, int] = _NOTHING) -> str:
    """The headline: `0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready, 1 arch`.

    Args:
        explain: the explanation.
        held: by reason code, on how many of its workers single instances have whole GPUs, and nothing else is why.
        outside: by reason code, how many of its workers the spec leaves out. They do not count, unless all are.
    """
    if not explain.workers:
        return "0/0 fit: no worker has joined yet"
    if sum(outside.values()) >= explain.workers:
        outside = _NOTHING
    workers = explain.workers - sum(outside.values())
    counts: Counter[str] = Counter()
    for code, count in explain.rejected.items():
        counts[_HELD] += held.get(code, 0)
        counts[short(code)] += count - held.get(code, 0) - outside.get(code, 0)
    counts = +counts
    nearest = explain.nearest
    all_held = nearest is not None and held.get(nearest.code) == explain.rejected.get(nearest.code, 0)
    of_nearest = _HELD if all_held else "" if nearest is None else short(nearest.code)
    parts = []
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        sizes = f" ({_sizes(nearest)})" if nearest is not None and of_nearest == word else ""
        parts.append(f"{count} {word}{sizes}")
    line = f"{explain.fit}/{workers} fit: {', '.join(parts)}"
    if explain.unknown:
        line += f"; no such worker or GPU: {', '.join(explain.unknown)}"
    if explain.ambiguous:
        line += f"; ambiguous: {', '.join(explain.ambiguous)}"
    return line


def with_note(explain: Explain, note: str) -> Explain:
    """The explanation with a note about the queue, which ends its headline too."""
    if not note:
        return explain
    return msgspec.structs.replace(explain, message=f"{explain.message}; {note}", note=note)


def short(code: str) -> str:
    """A reason code in a few words."""
    return _SHORT.get(code, code.replace("_", " "))


def _sizes(nearest: NearestMiss) -> str:
    if nearest.need_gib is None or nearest.free_gib is None:
        return nearest.message or f"such as {nearest.worker}"
    # One decimal, or two if both would look equal.
    digits = 1 if round(nearest.need_gib, 1) != round(nearest.free_gib, 1) else 2
    need, free = round(nearest.need_gib, digits), round(nearest.free_gib, digits)
    return f"need {need:g} GiB, best free {free:g} on {nearest.worker}"
