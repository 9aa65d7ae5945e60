"""The verbs `report` and `usage`."""

from enum import StrEnum
from typing import Annotated, Final

import typer

from cli.errors import UsageError
from cli.printing.output import Format, print_data, print_table
from cli.printing.table import Table
from cli.runner import client, parse_seconds
from cli.text.idle_report import LEAVING, as_csv, cost_table, policies_table, report_table, summary
from cli.text.usage_report import usage_csv, usage_table
from cli.transport.paths import parse, path_of
from schemas.api.history import IdleReport
from schemas.api.usage import UsageReport
from schemas.printing import block

app = typer.Typer()
_reports = typer.Typer(no_args_is_help=True, help="Report how GPUs were used.")
app.add_typer(_reports, name="report")
WEEK_S: Final = 7 * 86_400.0
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
    """An output format of a report."""

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
            print(block(as_csv(report)), end="")
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
    """Report requests and tokens by key and model. A key for inference sees its own."""
    with client(ctx) as api:
        raw = api.get(path_of("usage"), since=f"{since:.15g}s", by=by)
        if output in (ReportFormat.JSON, ReportFormat.YAML):
            print_data(raw, Format(output.value))
            return
        report = parse(UsageReport, raw)
        if output is ReportFormat.CSV:
            print(block(usage_csv(report)), end="")
            return
        print_table(Table(*usage_table(report)), empty="no request was counted in this time")
