"""The idle report as tables and CSV. Pure."""

import csv
import io
from collections import Counter
from typing import Final

from cli.text.formatting import hours, or_dash, short_gpu, span
from schemas.api.history import IdleCost, IdleFigures, IdleReport

LEAVING: Final = ("UNKNOWN", "USED")  # columns that a narrow terminal can do without
_TITLES: Final = ("DEPLOYMENT", "POLICY", "BELOW", "CLAIMED", "USED", "WASTED", "UNKNOWN", "FREED", "WOULD FREE")
_CSV: Final = (
    "deployment", "uid", "deleted", "policy", "min_gpu_utilization", "claimed_gpu_hours", "used_gpu_hours",
    "wasted_gpu_hours", "unknown_gpu_hours", "freed_gpu_hours", "would_free_gpu_hours", "currency", "claimed_cost",
    "used_cost", "wasted_cost", "unknown_cost", "would_free_cost",
)  # fmt: skip
_HOURS: Final = ("claimed", "used", "wasted", "unknown", "freed", "would_free")
_COSTS: Final = ("claimed", "used", "wasted", "unknown", "would_free")


def report_table(report: IdleReport) -> tuple[list[str], list[list[str]]]:
    """Titles and rows in GPU hours, the most wasteful deployment first, and the total."""
    last = None if report.replayed else -1
    rows = [
        [name, or_dash(item.policy), f"{item.min_gpu_utilization}%", *_cells(item.gpu_hours)][:last]
        for name, item in zip(_names(report), report.items, strict=True)
    ]
    if rows:
        rows.append(["TOTAL", "", "", *_cells(report.total)][:last])
    return list(_TITLES[:last]), rows


def cost_table(report: IdleReport) -> tuple[list[str], list[list[str]]]:
    """Titles and rows in money, in the order of the other table; no rows where no prices are set."""
    if report.total_cost is None:
        return [], []
    last = None if report.replayed else -1
    titles = [f"COST IN {report.currency}", "CLAIMED", "USED", "WASTED", "UNKNOWN", "WOULD FREE"]
    rows = [[name, *_amounts(item.cost)][:last] for name, item in zip(_names(report), report.items, strict=True)]
    if rows:
        rows.append(["TOTAL", *_amounts(report.total_cost)][:last])
    return titles[:last], rows


def policies_table(report: IdleReport) -> tuple[list[str], list[list[str]]]:
    """Titles and rows of what each policy freed."""
    rows = [[item.policy, str(item.actions), hours(item.gpu_hours_freed)] for item in report.policies]
    return ["POLICY", "ACTIONS", "FREED"], rows


def summary(report: IdleReport) -> str:
    """The explanation below the table."""
    lines = [
        f"GPU hours from {report.since:%Y-%m-%d %H:%M} to {report.until:%Y-%m-%d %H:%M} UTC",
        "WASTED: claimed in minutes that never reached BELOW. UNKNOWN: claimed in minutes without samples.",
    ]
    if report.replayed:
        policy = f"{report.replayed.min_gpu_utilization} % / {span(report.replayed.time_window)}"
        lines.append(f"WOULD FREE: claimed after a policy of {policy} would have found the instance idle.")
    if report.unpriced:
        models = ", ".join(f"{one.model or 'unknown'} ({hours(one.gpu_hours)} GPU hours)" for one in report.unpriced)
        lines.append(f"Without a price: {models}. Deployments on them have no amount and are not in the total.")
    return "\n".join(lines)


def as_csv(report: IdleReport) -> str:
    """One line per deployment, without a total. Hours have four decimals, amounts two; what is unknown is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for item in report.items:
        hours_of = [getattr(item.gpu_hours, name) for name in _HOURS]
        figures = ["" if value is None else f"{value:.4f}" for value in hours_of]
        deleted = str(item.deleted).lower()
        amounts = [getattr(item.cost, name) if item.cost else None for name in _COSTS]
        named = [item.deployment, item.uid, deleted, item.policy, item.min_gpu_utilization]
        writer.writerow([*named, *figures, report.currency, *amounts])
    return text.getvalue()


def _names(report: IdleReport) -> list[str]:
    """Deployments as rows name them: those that had the same name with a part of their uid."""
    times = Counter(item.deployment for item in report.items)
    return [
        item.deployment
        + (f" ({short_gpu(item.uid)})" if times[item.deployment] > 1 else "")
        + (", deleted" if item.deleted else "")
        for item in report.items
    ]


def _amounts(cost: IdleCost | None) -> list[str]:
    return [or_dash(getattr(cost, name) if cost else None) for name in _COSTS]


def _cells(f: IdleFigures) -> list[str]:
    return [
        hours(f.claimed),
        _of(f.used, f.claimed),
        _of(f.wasted, f.claimed),
        _of(f.unknown, f.claimed),
        hours(f.freed),
        hours(f.would_free),
    ]


def _of(part: float, whole: float) -> str:
    return hours(part) + (f" ({100 * part / whole:.0f}%)" if whole else "")
