"""Why an instance is pending, its need and its layout, as text. Pure."""

from typing import TYPE_CHECKING

from cli.text.formatting import gib

if TYPE_CHECKING:  # slow to import
    from schemas.api.explain import Explain
    from schemas.api.needs import LayoutView, NeedView


def explain_lines(explain: "Explain") -> list[str]:
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
    """Such as `8 GPUs on 2 workers (tp 4, pp 2)`."""
    over = f" on {layout.workers} workers" if layout.workers > 1 else ""
    degrees = ", ".join(f"{name} {n}" for name, n in (("tp", layout.tp), ("pp", layout.pp), ("dp", layout.dp)) if n > 1)
    return f"{layout.gpus} GPU{'s' * (layout.gpus != 1)}{over}" + (f" ({degrees})" if degrees else "")
