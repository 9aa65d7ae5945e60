"""The verb `pending`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer

from cli.objects.gpus import gpu_names
from cli.objects.kind import Column, Kind, table_of
from cli.objects.views import read_view
from cli.printing.output import Format, print_data, print_table
from cli.runner import OutputOption, client
from cli.text.formatting import age, local_time, or_dash
from cli.transport.paths import path_of

if TYPE_CHECKING:  # slow to import
    from schemas.api.pending import PendingView

app = typer.Typer()


def _place(view: "PendingView") -> str:
    return "" if view.place is None else f"{view.place} of {view.of}"


PENDING: Final = Kind(
    "pending instance",
    "pending",
    "PendingView",
    (
        Column("PLACE", lambda p, _: or_dash(_place(p))),
        Column("NAME", lambda p, _: p.instance),
        Column("DEPLOYMENT", lambda p, _: p.deployment, rank=4),
        Column("PRIORITY", lambda p, _: str(p.priority), rank=2),
        Column("AGE", lambda p, now: age(p.queued_at, now), wide=True, rank=5),
        Column("PENDING FOR", lambda p, now: age(p.since, now), rank=1),
        Column("RESERVED ON", lambda p, _: or_dash(", ".join(p.reserved_on)), rank=3),
        Column("QUEUED", lambda p, _: local_time(p.queued_at), wide=True, rank=7),
        Column("PENDING SINCE", lambda p, _: local_time(p.since), wide=True, rank=8),
        Column("REASON", lambda p, _: or_dash(p.reason), wide=True, rank=6),
        Column("WHY", lambda p, _: or_dash(p.message)),
    ),
    by_name=False,
)


@app.command()
def pending(ctx: typer.Context, output: OutputOption = Format.TABLE) -> None:
    """List pending instances in the order in which they are placed.

    Each line shows for which of them capacity is reserved, and why it does not fit. `gpuward describe instance NAME`
    adds what would make it fit.
    """
    with client(ctx) as api:
        listed = api.get(path_of(PENDING.plural))
        if output.for_programs:
            print_data(listed, output)
            return
        views = [read_view(PENDING.view, raw) for raw in listed["items"]]
        table = table_of(PENDING, views, datetime.now(UTC), wide=output is Format.WIDE, gpus=gpu_names(api))
        print_table(table, empty="Nothing is pending.")
