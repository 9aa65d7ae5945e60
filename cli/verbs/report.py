"""The verbs `report` and `usage`, and their tables and CSV."""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Final

import typer

from cli.errors import UsageError
from cli.printing.output import Format, print_data, print_lines, print_table
from cli.printing.table import Table
from cli.runner import client, parse_seconds
from cli.text.formatting import hours, or_dash, short_gpu, span
from cli.transport.paths import parse, path_of
from schemas.api.history import IdleCost, IdleFigures, IdleReport
from schemas.api.usage import UsageItem, UsageReport
from schemas.printing import block

app = typer.Typer()
_reports = typer.Typer(no_args_is_help=True, help="Report how GPUs were used.")
app.add_typer(_reports, name="report")
WEEK_S: Final = 7 * 86_400.0
LEAVING: Final = ("UNKNOWN", "USED")  # columns that a narrow terminal can do without
_IDLE_TITLES: Final = ("DEPLOYMENT", "POLICY", "BELOW", "CLAIMED", "USED", "WASTED", "UNKNOWN", "FREED", "WOULD FREE")
_IDLE_CSV: Final = (
    "deployment", "uid", "deleted", "policy", "min_gpu_utilization", "claimed_gpu_hours", "used_gpu_hours",
    "wasted_gpu_hours", "unknown_gpu_hours", "freed_gpu_hours", "would_free_gpu_hours", "currency", "claimed_cost",
    "used_cost", "wasted_cost", "unknown_cost", "would_free_cost",
)  # fmt: skip
_HOURS: Final = ("claimed", "used", "wasted", "unknown", "freed", "would_free")
_COSTS: Final = ("claimed", "used", "wasted", "unknown", "would_free")
_DIMENSIONS: Final = ("key", "model", "endpoint")
_USAGE_TITLES: Final = (
    "REQUESTS", "REFUSED", "ERRORS", "PROMPT TOKENS", "CACHED TOKENS", "COMPLETION TOKENS", "IN FLIGHT", "FIRST TOKEN",
    "ESTIMATED",
)  # fmt: skip
_USAGE_LEAVING: Final = ("ESTIMATED", "CACHED TOKENS", "IN FLIGHT", "FIRST TOKEN", "ERRORS")
_USAGE_CSV: Final = (
    "key", "key_name", "model", "endpoint", "requests", "errors", "prompt_tokens", "cached_tokens",
    "completion_tokens", "estimated", "in_flight_s", "first_token_s", "refused",
)  # fmt: skip
SinceOption = Annotated[
    float,
    typer.Option(
        "--since",
        parser=parse_seconds,
        metavar="DURATION",
        show_default="7d",
        help="Start of the report as time before now, such as 7d or 12h.",
    ),
]


class ReportFormat(StrEnum):
    """Formats of `-o`."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@_reports.command()
def idle(
    ctx: typer.Context,
    since: SinceOption = WEEK_S,
    minimum: Annotated[
        int | None,
        typer.Option(
            "--min-gpu-utilization",
            min=1,
            max=100,
            help="Also replay a policy with this minimum, in percent. Requires --time-window.",
        ),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            "--time-window", parser=parse_seconds, metavar="DURATION", help="Time window of the replayed policy."
        ),
    ] = None,
    output: Annotated[ReportFormat, typer.Option("--output", "-o", help="Output format.")] = ReportFormat.TABLE,
) -> None:
    """Report GPU hours by deployment. They are claimed, used, wasted, or freed by a policy."""
    with client(ctx) as api:
        if (minimum is None) != (window is None):
            missing = "--time-window" if window is None else "--min-gpu-utilization"
            raise UsageError(f"{missing} is required: a replay needs both --min-gpu-utilization and --time-window")
        raw = api.get(
            path_of("reports", "idle"),
            since=f"{since:.15g}s",
            min_gpu_utilization=minimum,
            time_window=None if window is None else f"{window:.15g}s",
        )
        if output in (ReportFormat.JSON, ReportFormat.YAML):
            print_data(raw, Format(output.value))
            return
        report = parse(IdleReport, raw)
        if output is ReportFormat.CSV:
            print(block(idle_csv(report)), end="")
            return
        print_table(Table(*report_table(report), LEAVING), empty="no GPU was claimed in this time")
        if report.items and report.currency:
            print()
            print_table(Table(*cost_table(report), LEAVING), empty="")
        if report.policies:
            print()
            print_table(Table(*policies_table(report)), empty="")
        print(block("\n" + summary(report)))


@app.command()
def usage(
    ctx: typer.Context,
    since: SinceOption = WEEK_S,
    by: Annotated[
        str, typer.Option("--by", metavar="LIST", help="What to sum by: some of key, model and endpoint.")
    ] = "key,model",
    output: Annotated[ReportFormat, typer.Option("--output", "-o", help="Output format.")] = ReportFormat.TABLE,
) -> None:
    """Report requests and tokens by key and model. A key for inference sees its own.

    Refused requests count, too: a limit of their key or a full queue refused them, and no engine got them.
    """
    with client(ctx) as api:
        raw = api.get(path_of("usage"), since=f"{since:.15g}s", by=by)
        if output in (ReportFormat.JSON, ReportFormat.YAML):
            print_data(raw, Format(output.value))
            return
        report = parse(UsageReport, raw)
        if output is ReportFormat.CSV:
            print(block(usage_csv(report)), end="")
            return
        print_table(Table(*usage_table(report), _USAGE_LEAVING), empty="no request was counted in this time")
        if report.items:
            print_lines("\n" + usage_summary(report))


def report_table(report: IdleReport) -> tuple[list[str], list[list[str]]]:
    """Titles and rows in GPU hours, the most wasteful deployment first, and the total."""
    last = None if report.replayed else -1
    rows = [
        [name, or_dash(item.policy), f"{item.min_gpu_utilization}%", *_idle_cells(item.gpu_hours)][:last]
        for name, item in zip(_deployments(report), report.items, strict=True)
    ]
    if rows:
        rows.append(["TOTAL", "", "", *_idle_cells(report.total)][:last])
    return list(_IDLE_TITLES[:last]), rows


def cost_table(report: IdleReport) -> tuple[list[str], list[list[str]]]:
    """Titles and rows in money, in the order of the other table; no rows where no prices are set."""
    if report.total_cost is None:
        return [], []
    last = None if report.replayed else -1
    titles = [f"COST IN {report.currency}", "CLAIMED", "USED", "WASTED", "UNKNOWN", "WOULD FREE"]
    rows = [[name, *_amounts(item.cost)][:last] for name, item in zip(_deployments(report), report.items, strict=True)]
    if rows:
        rows.append(["TOTAL", *_amounts(report.total_cost)][:last])
    return titles[:last], rows


def policies_table(report: IdleReport) -> tuple[list[str], list[list[str]]]:
    rows = [[item.policy, str(item.actions), hours(item.gpu_hours_freed)] for item in report.policies]
    return ["POLICY", "ACTIONS", "FREED"], rows


def summary(report: IdleReport) -> str:
    lines = [
        f"GPU hours from {report.since:%Y-%m-%d %H:%M} to {report.until:%Y-%m-%d %H:%M} UTC",
        "WASTED: claimed in minutes that never reached BELOW. UNKNOWN: claimed in minutes without samples.",
    ]
    if report.replayed:
        policy = f"{report.replayed.min_gpu_utilization} % / {span(report.replayed.time_window)}"
        lines.append(f"WOULD FREE: claimed after a policy of {policy} would have found the instance idle.")
    if report.unpriced:
        models = ", ".join(f"{gpu.model or 'unknown'} ({hours(gpu.gpu_hours)} GPU hours)" for gpu in report.unpriced)
        lines.append(f"Without a price: {models}. Deployments on them have no amount and are not in the total.")
    return "\n".join(lines)


def idle_csv(report: IdleReport) -> str:
    """One line per deployment, without a total. Hours have four decimals, amounts two; unknown values are empty."""
    rows: list[list[object]] = []
    for item in report.items:
        hours_of = [getattr(item.gpu_hours, name) for name in _HOURS]
        figures = ["" if value is None else f"{value:.4f}" for value in hours_of]
        deleted = str(item.deleted).lower()
        amounts = [getattr(item.cost, name) if item.cost else None for name in _COSTS]
        named = [item.deployment, item.uid, deleted, item.policy, item.min_gpu_utilization]
        rows.append([*named, *figures, report.currency, *amounts])
    return _csv(_IDLE_CSV, rows)


def _csv(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([titles, *rows])
    return text.getvalue()


def _deployments(report: IdleReport) -> list[str]:
    """The names for rows; deployments of one name get a part of their uid."""
    times = Counter(item.deployment for item in report.items)
    return [
        item.deployment
        + (f" ({short_gpu(item.uid)})" if times[item.deployment] > 1 else "")
        + (", deleted" if item.deleted else "")
        for item in report.items
    ]


def _amounts(cost: IdleCost | None) -> list[str]:
    return [or_dash(getattr(cost, name) if cost else None) for name in _COSTS]


def _idle_cells(f: IdleFigures) -> list[str]:
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


def usage_table(report: UsageReport) -> tuple[list[str], list[list[str]]]:
    """Titles and rows, most tokens first. FIRST TOKEN is the mean time until then."""
    shown = [name for name in _DIMENSIONS if any(getattr(item, name) is not None for item in report.items)]
    named = [item.key_name for item in report.items]
    rows = [[*(_dimension(item, name, named) for name in shown), *_usage_cells(item)] for item in report.items]
    return [*(name.upper() for name in shown), *_USAGE_TITLES], rows


def usage_summary(report: UsageReport) -> str:
    lines = [
        f"Requests from {report.since:%Y-%m-%d %H:%M} to {report.until:%Y-%m-%d %H:%M} UTC",
        "REFUSED: requests that a limit of the key or a full queue refused.",
        "IN FLIGHT: seconds of all requests together. FIRST TOKEN: mean seconds until the first token.",
        "ESTIMATED: requests whose tokens are estimated.",
    ]
    return "\n".join(lines)


def usage_csv(report: UsageReport) -> str:
    """One line per combination. Times are seconds."""

    def cell(value: object) -> object:
        return "" if value is None else f"{value:.3f}" if isinstance(value, float) else value

    return _csv(_USAGE_CSV, [[cell(getattr(item, name)) for name in _USAGE_CSV] for item in report.items])


def _dimension(item: UsageItem, dimension: str, names: list[str | None]) -> str:
    """Keys by name, with the start of the id where several keys have it."""
    if dimension != "key":
        return or_dash(getattr(item, dimension))
    name = item.key_name or ""
    return f"{name} ({(item.key or '')[:8]})" if names.count(item.key_name) > 1 else name


def _usage_cells(item: UsageItem) -> list[str]:
    first = "-" if item.first_token_s is None else f"{item.first_token_s:.3f} s"
    return [
        str(item.requests),
        str(item.refused),
        str(item.errors),
        str(item.prompt_tokens),
        str(item.cached_tokens),
        str(item.completion_tokens),
        f"{item.in_flight_s:.1f} s",
        first,
        str(item.estimated),
    ]
