"""The usage report as a table and as CSV. Pure."""

import csv
import io
from typing import Final

from schemas.api.usage import UsageItem, UsageReport

_DIMENSIONS: Final = ("key", "model", "endpoint")
_TITLES: Final = ("REQUESTS", "ERRORS", "PROMPT", "CACHED", "COMPLETION", "IN FLIGHT", "FIRST TOKEN", "ESTIMATED")
_CSV: Final = (
    "key", "key_name", "model", "endpoint", "requests", "errors", "prompt_tokens", "cached_tokens",
    "completion_tokens", "estimated", "in_flight_s", "first_token_s",
)  # fmt: skip


def usage_table(report: UsageReport) -> tuple[list[str], list[list[str]]]:
    """Titles and rows, most tokens first. FIRST TOKEN is the mean time until then."""
    shown = [name for name in _DIMENSIONS if any(getattr(item, name) is not None for item in report.items)]
    named = [item.key_name for item in report.items]
    rows = [[*(_name(item, one, named) for one in shown), *_cells(item)] for item in report.items]
    return [*(name.upper() for name in shown), *_TITLES], rows


def usage_csv(report: UsageReport) -> str:
    """One line per combination. Times are seconds."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_CSV)
    for item in report.items:
        values = (getattr(item, name) for name in _CSV)
        writer.writerow(["" if v is None else f"{v:.3f}" if isinstance(v, float) else v for v in values])
    return text.getvalue()


def _name(item: UsageItem, dimension: str, names: list[str | None]) -> str:
    """Keys by name; where a name is not one key's alone, with the beginning of the id."""
    if dimension != "key":
        return getattr(item, dimension) or ""
    name = item.key_name or ""
    keys = names.count(item.key_name) > 1
    return f"{name} ({(item.key or '')[:8]})" if keys else name


def _cells(item: UsageItem) -> list[str]:
    first = "-" if item.first_token_s is None else f"{item.first_token_s:.3f} s"
    return [
        str(item.requests),
        str(item.errors),
        str(item.prompt_tokens),
        str(item.cached_tokens),
        str(item.completion_tokens),
        f"{item.in_flight_s:.1f} s",
        first,
        str(item.estimated),
    ]
