"""Verbs that list objects: get, ps."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.api import Json, path_of
from cli.errors import NotFoundError
from cli.event_rows import folded
from cli.kind import Kind, table_of
from cli.kinds import (
    DEPLOYMENTS,
    EVENTS,
    INSTANCES,
    kind_named,
)
from cli.names import matching, only_one
from cli.output import Format, print_data, print_table
from cli.runner import OutputOption, run
from cli.scaling_text import notes
from cli.views import read_view
from schemas.printing import block

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
_LATEST_EVENTS: Final = 100


@app.command()
def get(
    ctx: typer.Context,
    kind: Annotated[
        str, typer.Argument(help="Kind: deployments, instances, workers, gpus, policies, events, keys or tokens.")
    ],
    name: Annotated[str | None, typer.Argument(help="Name of one object. Default: all of the kind.")] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """List the objects of a kind, or show one of them."""

    async def work(api: "Api") -> None:
        wanted = kind_named(kind)
        if name is not None:
            print_objects(wanted, [await read_object(api, wanted, name)], output, single=True)
        elif wanted is EVENTS:
            newest_first = await api.items(path_of(EVENTS.plural), limit=_LATEST_EVENTS)
            print_objects(wanted, newest_first[::-1], output)
        else:
            print_objects(wanted, await api.items(path_of(wanted.plural)), output)

    run(ctx, work)


@app.command()
def ps(
    ctx: typer.Context,
    deployment: Annotated[str | None, typer.Argument(help="List only instances of this deployment.")] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """List instances. Each line shows where an instance runs or why it does not, and when a policy will stop it.

    Below them: the deployments that sleep or are stopped, and those of which a limit keeps replicas away.
    """

    async def work(api: "Api") -> None:
        found = await api.items(path_of(INSTANCES.plural), deployment=deployment)
        if deployment is not None and not found:
            await read_object(api, DEPLOYMENTS, deployment)  # raises if the deployment itself does not exist
        print_objects(INSTANCES, found, output)
        if not output.for_programs:
            deployments = [read_view(DEPLOYMENTS.view, raw) for raw in await api.items(path_of(DEPLOYMENTS.plural))]
            for line in notes(one for one in deployments if deployment in (None, one.name)):
                print(block(line))

    run(ctx, work)


def print_objects(kind: Kind, raws: list[Json], output: Format, *, single: bool = False) -> None:
    """Prints objects in the output format. A `single` one is printed without the envelope of a list."""
    if output.for_programs:
        print_data(raws[0] if single else {"items": raws}, output)
        return
    now = datetime.now(UTC)
    views = [read_view(kind.view, raw) for raw in raws]
    if kind is EVENTS and output is Format.TABLE:
        views = folded(views, now)
    table = table_of(kind, views, now, wide=output is Format.WIDE)
    print_table(table, empty=f"no {kind.plural} found")


async def read_object(api: "Api", kind: Kind, name: str) -> Json:
    """The object of this kind and name. The name may be shortened, or a GPU's as tables print it.

    Raises:
        NotFoundError: it does not exist.
        CliError: the beginning of a name fits several.
    """
    if kind.by_name:
        raw = await api.find(path_of(kind.plural, name))
        if raw is not None:
            return raw
        raws = await api.items(path_of(kind.plural))
        found = only_one(kind, name, matching(kind, name, raws))
        return next(raw for raw in raws if raw["name"] == found)
    for raw in await api.items(path_of(kind.plural)):
        if name in (str(raw.get("id")), raw.get("name")):
            return raw
    raise NotFoundError(f"{kind.singular} {name!r} does not exist")
