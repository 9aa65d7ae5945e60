"""Verbs about gateways: list, forget. The same name without a verb runs one: see `cli/local/daemons.py`."""

from typing import Annotated

import typer

from cli.objects.kinds import GATEWAYS
from cli.printing.output import Format, ListOutputOption
from cli.runner import client, delete
from cli.transport.paths import path_of
from cli.verbs.get import print_objects

gateway = typer.Typer(invoke_without_command=True)
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a process, or of a gateway with all its silent processes.")
]


@gateway.command("list")
def list_gateways(ctx: typer.Context, output: ListOutputOption = Format.TABLE) -> None:
    """List gateways, each process by itself, and whether they report."""
    with client(ctx) as api:
        print_objects(GATEWAYS, api.items(path_of(GATEWAYS.plural)), output)


@gateway.command()
def forget(ctx: typer.Context, name: NameArgument) -> None:
    """Forget a silent gateway that is gone for good, so that replicas can be removed again."""
    delete(ctx, (GATEWAYS.plural, name), f"gateway/{name} forgotten")
