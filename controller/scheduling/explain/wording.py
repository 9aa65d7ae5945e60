"""Why an instance is pending, in one line: the `message` of an explanation, in every view of it. Pure."""

from collections import Counter
from typing import Final

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


def one_line(explain: Explain) -> str:
    """The headline: `0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready, 1 arch`."""
    if not explain.workers:
        return "0/0 fit: no worker has joined yet"
    counts: Counter[str] = Counter()
    for code, count in explain.rejected.items():
        counts[short(code)] += count
    nearest = explain.nearest
    parts = []
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        sizes = f" ({_sizes(nearest)})" if nearest is not None and short(nearest.code) == word else ""
        parts.append(f"{count} {word}{sizes}")
    line = f"{explain.fit}/{explain.workers} fit: {', '.join(parts)}"
    if explain.unknown:
        line += f"; no such worker or GPU: {', '.join(explain.unknown)}"
    if explain.ambiguous:
        line += f"; ambiguous: {', '.join(explain.ambiguous)}"
    return line


def with_note(explain: Explain, note: str) -> Explain:
    """The explanation with a note about the queue, which ends its headline too."""
    if not note:
        return explain
    return explain.model_copy(update={"message": f"{explain.message}; {note}", "note": note})


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
