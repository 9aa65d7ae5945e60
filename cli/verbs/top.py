"""The verb `top`: workers and GPUs now, live on a terminal."""

from typing import Annotated

import typer

from cli.printing.output import console
from cli.runner import client, parse_seconds
from cli.terminal.screen import fit_for_screens

app = typer.Typer()


@app.command()
def top(
    ctx: typer.Context,
    once: Annotated[bool, typer.Option("--once", "-n", help="Print once and exit.")] = False,
    worker: Annotated[str | None, typer.Option("--worker", help="Show only this worker.")] = None,
    window: Annotated[
        float,
        typer.Option(
            "--window",
            parser=parse_seconds,
            metavar="DURATION",
            show_default="10m",
            help="Length of the utilization graph.",
        ),
    ] = 600.0,
) -> None:
    """Show workers and GPUs live. Each GPU has its memory, utilization, and when a policy stops its instances.

    Keys: `q` quits, `s` sorts by the next column and `S` reverses, `/` filters by worker, GPU, model or deployment, the
    arrows, PgUp, PgDn, Home and End scroll, `?` lists the keys. A pipe gets what `--once` prints.
    """
    live = not once and fit_for_screens()
    with client(ctx, endless=live) as api:
        from cli.top.read import MOST_PRINTED, Reader  # noqa: PLC0415 - slow to import

        reader = Reader(api, worker, window)
        if live:
            from cli.top.live import Live  # noqa: PLC0415 - slow to import

            Live(reader).run()
            return
        from cli.top.printed import view_of  # noqa: PLC0415 - slow to import

        out = console()
        with out.capture() as captured:
            out.print(view_of(reader.all(most=MOST_PRINTED, graphs=True)))
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))
