"""The verb `top`: workers and GPUs now, live on a terminal."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.printing.output import print_table
from cli.runner import client, parse_seconds
from cli.terminal.screen import fit_for_screens
from cli.text.formatting import printable

if TYPE_CHECKING:  # slow to import
    from cli.top.snapshot import Snapshot

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
        _print(reader.all(most=MOST_PRINTED, graphs=True))


def _print(snapshot: "Snapshot") -> None:
    from cli.top.picture import totals  # noqa: PLC0415 - slow to import
    from cli.top.printed import gpu_table, worker_table  # noqa: PLC0415 - as above

    print(printable(f"{snapshot.url}  {snapshot.now.astimezone():%H:%M:%S}"))
    print(printable(", ".join(totals(snapshot))))
    print_table(worker_table(snapshot), empty=None)
    print()
    print_table(gpu_table(snapshot), empty=None)
    if (left_out := snapshot.gpus_in_all - len(snapshot.gpus)) > 0:
        print(f"{left_out} more GPUs; use --worker NAME to see those of one worker")
