"""Verbs that read: get, ps, describe."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.answers import Json, parse, path_of
from cli.describe import describe as describe_view
from cli.describe_utilization import drawn_of
from cli.errors import CliError, NotFoundError
from cli.kinds import (
    DEPLOYMENTS,
    EVENTS,
    GPUS,
    INSTANCES,
    POLICIES,
    WORKERS,
    Kind,
    kind_named,
    object_key,
    table_of,
)
from cli.output import Format, print_data, print_table
from cli.verb import OutputOption, run
from schemas.api.events import EventView
from schemas.api.gpus import GpuView
from schemas.api.instances import InstanceView

if TYPE_CHECKING:  # slow to import, and `--help` needs none of it
    from cli.client import Api

app = typer.Typer()
_LATEST_EVENTS: Final = 100
_DESCRIBED_EVENTS: Final = 15
_DRAWN: Final = (DEPLOYMENTS, INSTANCES)


@app.command()
def get(
    ctx: typer.Context,
    kind: Annotated[
        str, typer.Argument(help="deployments, instances, workers, gpus, policies, events, keys or tokens.")
    ],
    name: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Print objects of a kind, or one of them."""

    async def work(api: "Api") -> None:
        wanted = kind_named(kind)
        if name is not None:
            show(wanted, [await _one(api, wanted, name)], output, single=True)
        elif wanted is EVENTS:
            newest_first = await api.items(path_of(EVENTS.path), limit=_LATEST_EVENTS)
            show(wanted, newest_first[::-1], output)
        else:
            show(wanted, await api.items(path_of(wanted.path)), output)

    run(ctx, work)


@app.command()
def ps(
    ctx: typer.Context,
    deployment: Annotated[str | None, typer.Argument(help="Only instances of this deployment.")] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """Print the instances: where they run, or why they do not; for how long they idle, and when that ends them."""

    async def work(api: "Api") -> None:
        found = await api.items(path_of(INSTANCES.path), deployment=deployment)
        if deployment is not None and not found:
            await _one(api, DEPLOYMENTS, deployment)  # none of its instances is another answer than no such deployment
        show(INSTANCES, found, output)

    run(ctx, work)


@app.command()
def describe(
    ctx: typer.Context,
    kind: Annotated[str, typer.Argument(help="deployment, instance, worker, gpu or policy.")],
    name: Annotated[str, typer.Argument(help="Its name; an instance's id, a GPU's UUID.")],
    output: OutputOption = Format.TABLE,
) -> None:
    """Print all facts of one object, and its last events."""

    async def work(api: "Api") -> None:
        wanted = kind_named(kind, (DEPLOYMENTS, INSTANCES, WORKERS, GPUS, POLICIES))
        raw = await _one(api, wanted, name)
        if output.for_programs:
            print_data(raw, output)
        else:
            print(await _description(api, wanted, raw))

    run(ctx, work)


def show(kind: Kind, raws: list[Json], output: Format, *, single: bool = False) -> None:
    """Prints objects in the wanted form; a `single` one without the envelope of a list."""
    if output.for_programs:
        print_data(raws[0] if single else {"items": raws}, output)
        return
    views = [parse(kind.model, raw) for raw in raws]
    titles, rows = table_of(kind, views, datetime.now(UTC), wide=output is Format.WIDE)
    print_table(titles, rows, empty=f"there are no {kind.plural}")


async def _one(api: "Api", kind: Kind, name: str) -> Json:
    if kind.by_name:
        return await api.get(path_of(kind.path, name))
    for raw in await api.items(path_of(kind.path)):
        if name in (str(raw.get("id")), raw.get("name")):
            return raw
    raise NotFoundError(f"there is no {kind.singular} {name!r}")


async def _description(api: "Api", kind: Kind, raw: Json) -> str:
    name = raw["name"]
    if kind is INSTANCES and raw["status"]["phase"] == "pending":
        raw = await _with_advice(api, raw)
    instances = await api.items(path_of(INSTANCES.path), deployment=name) if kind is DEPLOYMENTS else []
    gpus = await api.items(path_of(GPUS.path), worker=name) if kind is WORKERS else []
    events = await api.items(path_of(EVENTS.path), limit=_DESCRIBED_EVENTS, object=object_key(kind, raw))
    now = datetime.now(UTC)
    drawn = await drawn_of(api, kind.singular, name, object_key(kind, raw), now) if kind in _DRAWN else []
    return describe_view(
        parse(kind.model, raw),
        instances=[parse(InstanceView, item) for item in instances],
        gpus=[parse(GpuView, item) for item in gpus],
        events=[parse(EventView, item) for item in reversed(events)],
        drawn=drawn,
        now=now,
    )


async def _with_advice(api: "Api", raw: Json) -> Json:
    """A waiting instance with the explanation of this moment, which takes the controller some work."""
    try:
        explain = await api.get(path_of(INSTANCES.path, raw["name"], "explain"))
    except CliError:  # it has got its place meanwhile, or is gone
        return raw
    return {**raw, "status": {**raw["status"], "explain": explain}}
