"""The verb `usage`."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.api import parse, path_of
from cli.output import Format, print_data, print_table
from cli.runner import parse_seconds, run
from cli.usage_report import usage_csv, usage_table
from cli.verbs.report import ReportFormat
from schemas.api.usage import UsageReport
from schemas.printing import block

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
_WEEK_S: Final = 7 * 86_400.0


@app.command()
def usage(
    ctx: typer.Context,
    since: Annotated[
        float,
        typer.Option(
            "--since",
            parser=parse_seconds,
            metavar="DURATION",
            show_default="7d",
            help="Start of the report as time before now, such as 7d or 12h.",
        ),
    ] = _WEEK_S,
    by: Annotated[
        str, typer.Option("--by", metavar="LIST", help="What to sum by: some of key, model and endpoint.")
    ] = "key,model",
    output: Annotated[ReportFormat, typer.Option("--output", "-o", help="Output format.")] = ReportFormat.TABLE,
) -> None:
    """Report requests and tokens by key and model. A key for inference sees its own."""

    async def work(api: "Api") -> None:
        raw = await api.get(path_of("usage"), since=f"{since:.15g}s", by=by)
        if output in (ReportFormat.JSON, ReportFormat.YAML):
            print_data(raw, Format(output.value))
            return
        report = parse(UsageReport, raw)
        if output is ReportFormat.CSV:
            print(block(usage_csv(report)), end="")
            return
        print_table(*usage_table(report), empty="no request was counted in this time")

    run(ctx, work)
