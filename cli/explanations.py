"""Why an instance is pending, its need and its layout, as text. Pure."""

from collections import Counter
from typing import TYPE_CHECKING, Final

from cli.formatting import gib

if TYPE_CHECKING:  # slow to import
    from schemas.api.explain import Explain, NearestMiss
    from schemas.api.needs import LayoutView, NeedView

# Short words for reason codes. Other codes are shown with blanks for underscores.
_SHORT: Final = {
    "need_gt_capacity": "VRAM",
    "need_gt_free": "VRAM",
    "host_memory": "RAM",
    "cpu": "CPU",
    "os_arch": "arch",
    "label_mismatch": "labels",
    "runtime_unsupported": "runtime",
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


def one_line(explain: "Explain") -> str:
    """The headline: `0/12 fit: 8 VRAM (need 38 GiB, best free 22.1 on gpu-7), 3 not ready, 1 arch`."""
    if not explain.rejected:
        return explain.message
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
        line += f"; unknown workers or GPUs: {', '.join(explain.unknown)}"
    if explain.ambiguous:
        line += f"; ambiguous: {', '.join(explain.ambiguous)}"
    return f"{line}; {explain.note}" if explain.note else line


def short(code: str) -> str:
    """A reason code in a few words."""
    return _SHORT.get(code, code.replace("_", " "))


def _sizes(nearest: "NearestMiss") -> str:
    if nearest.need_gib is None or nearest.free_gib is None:
        return nearest.message or f"such as {nearest.worker}"
    # One decimal, or two if both would look equal.
    digits = 1 if round(nearest.need_gib, 1) != round(nearest.free_gib, 1) else 2
    need, free = round(nearest.need_gib, digits), round(nearest.free_gib, digits)
    return f"need {need:g} GiB, best free {free:g} on {nearest.worker}"


def explain_lines(explain: "Explain") -> list[str]:
    """Why an instance is pending: counts, the nearest miss, layouts that were ruled out, and advice."""
    lines = [f"{explain.fit} of {explain.workers} workers fit ({explain.gpus} GPUs checked)"]
    lines += [f"{count} x {code}" for code, count in sorted(explain.rejected.items(), key=lambda item: -item[1])]
    nearest = explain.nearest
    if nearest is not None:
        sizes = [f"needs {nearest.need_gib:g} GiB"] if nearest.need_gib is not None else []
        sizes += [f"has {nearest.free_gib:g} GiB"] if nearest.free_gib is not None else []
        why = ", ".join([nearest.code, *([nearest.message] if nearest.message else sizes)])
        lines.append(f"nearest: {nearest.worker} ({why})")
    lines += [f"unknown worker or GPU: {name}" for name in explain.unknown]
    lines += [f"ambiguous: {name}" for name in explain.ambiguous]
    lines += [explain.note] if explain.note else []
    lines += [f"ruled out: {t.gpus} GPUs, tp {t.tp} ({t.reason})" for t in explain.tried]
    return [*lines, *explain.advice]


def need_lines(need: "NeedView") -> list[str]:
    """The need, its parts, and the notes about it."""
    if need.memory_mib is None:
        lines = ["GPU memory: unknown, so whole GPUs are claimed"]
    elif not need.memory_mib:
        lines = ["GPU memory: none"]
    else:
        lines = [f"GPU memory: {gib(need.memory_mib)} {'per GPU' if need.per_gpu else 'in total'}"]
    width = max((len(part) for part in need.parts), default=0)
    lines += [f"  {part:<{width}}  {gib(size)}" for part, size in need.parts.items()]
    if need.host_memory_mib:
        lines.append(f"host memory: {gib(need.host_memory_mib)}")
    if need.context is not None:
        lines.append(f"sufficient for {need.sequences or 1} concurrent sequences of {need.context} tokens")
    return [*lines, *need.notes]


def layout_line(layout: "LayoutView") -> str:
    """A layout as text: `8 GPUs on 2 workers (tp 4, pp 2)`."""
    over = f" on {layout.workers} workers" if layout.workers > 1 else ""
    degrees = ", ".join(f"{name} {n}" for name, n in (("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp)) if n > 1)
    return f"{layout.gpus} GPU{'s' * (layout.gpus != 1)}{over}" + (f" ({degrees})" if degrees else "")
