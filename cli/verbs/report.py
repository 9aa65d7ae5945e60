"""The verb `report`."""

from typing import Annotated

import typer

from cli.errors import UsageError
from cli.printing.output import Format, print_data, print_table
from cli.printing.table import Table
from cli.runner import client, parse_seconds
from cli.text.idle_report import LEAVING, as_csv, cost_table, policies_table, report_table, summary
from cli.transport.paths import parse, path_of
from cli.verbs.report_options import WEEK_S, ReportFormat, SinceOption
from schemas.api.history import IdleReport
from schemas.printing import block

app = typer.Typer()
_reports = typer.Typer(no_args_is_help=True, help="Report how GPUs were used.")
app.add_typer(_reports, name="report")


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
