"""Verbs that tell of the past: report."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.answers import parse, path_of
from cli.errors import UsageError
from cli.idle_report import as_csv, policies_table, report_table, summary
from cli.output import Format, print_data, print_table
from cli.verb import run, seconds
from schemas.api.history import IdleReport

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
_reports = typer.Typer(no_args_is_help=True, help="Print what was claimed, used and wasted.")
app.add_typer(_reports, name="report")
_WEEK_S: Final = 7 * 86_400.0


class ReportFormat(StrEnum):
    """How to print a report."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


@_reports.command()
def idle(
    ctx: typer.Context,
    since: Annotated[
        float, typer.Option("--since", parser=seconds, metavar="DURATION", help="How far back, such as 7d or 12h.")
    ] = _WEEK_S,
    minimum: Annotated[
        int | None,
        typer.Option("--min-gpu-utilization", min=1, max=100, help="Replay a policy of this many percent."),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option("--time-window", parser=seconds, metavar="DURATION", help="The replayed policy's window."),
    ] = None,
    output: Annotated[ReportFormat, typer.Option("--output", "-o", help="How to print.")] = ReportFormat.TABLE,
) -> None:
    """Print GPU hours by deployment: claimed, used, wasted, freed, and what a stricter policy would have freed."""

    async def work(api: "Api") -> None:
        if (minimum is None) != (window is None):
            missing = "--time-window" if window is None else "--min-gpu-utilization"
            raise UsageError(f"{missing} is missing: a policy is replayed only where both it and the other are given")
        raw = await api.get(
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
            print(as_csv(report), end="")
            return
        print_table(*report_table(report), empty="no GPU was claimed in that time")
        if report.policies:
            print()
            print_table(*policies_table(report), empty="")
        print("\n" + summary(report))

    run(ctx, work)
