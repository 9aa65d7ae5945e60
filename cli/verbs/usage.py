"""The verb `usage`."""

from typing import Annotated

import typer

from cli.printing.output import Format, print_data, print_table
from cli.printing.table import Table
from cli.runner import client
from cli.text.usage_report import usage_csv, usage_table
from cli.transport.paths import parse, path_of
from cli.verbs.report_options import WEEK_S, ReportFormat, SinceOption
from schemas.api.usage import UsageReport
from schemas.printing import block

app = typer.Typer()


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
