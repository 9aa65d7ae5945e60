"""Verbs that list objects: get, ps."""

from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from cli.errors import NotFoundError, UsageError
from cli.objects.gpus import gpu_names
from cli.objects.kind import Kind, bare_name, table_of
from cli.objects.kinds import DEPLOYMENTS, EVENTS, INSTANCES, kind_named
from cli.objects.names import matching, only_one
from cli.objects.selection import SelectorOption, selected
from cli.objects.views import read_view
from cli.printing.output import Format, ListOutputOption, Names, Output, Picked, print_data, print_table
from cli.runner import client
from cli.several import Refusals
from cli.text.events import folded
from cli.text.gpu_names import GpuNames
from cli.text.scaling import notes
from cli.transport.client import Api
from cli.transport.near_names import did_you_mean, near
from cli.transport.paths import Json, checked_name, path_of
from schemas.printing import block

app = typer.Typer()
_LATEST_EVENTS: Final = 100
WatchOption = Annotated[
    bool,
    typer.Option(
        "--watch",
        "-w",
        help="Follow the list until Ctrl-C: on a terminal the table in its place, else a line for each change.",
    ),
]


@app.command()
def get(
    ctx: typer.Context,
    kind: Annotated[
        str, typer.Argument(help="Kind: deployments, instances, workers, gpus, policies, events, keys or tokens.")
    ],
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help="Names of objects. Default: all of the kind.")
    ] = None,
    selector: SelectorOption = None,
    watch: WatchOption = False,
    output: ListOutputOption = Format.TABLE,
) -> None:
    """List the objects of a kind, or some of them. `KIND/NAME` is taken for a name, too."""
    with client(ctx, endless=watch) as api:
        wanted, given = _kind_and_names(kind, names or [])
        if given and selector is not None:
            raise UsageError("names and --selector exclude each other; write the names, or the labels")
        if watch:
            from cli.follow.follow import follow  # noqa: PLC0415 - slow to import

            full = frozenset([str(read_object(api, wanted, name)["name"]) for name in given])
            follow(api, wanted, output, names=full, selector=selector)
            return
        if given:
            _print_named(api, wanted, given, output)
            return
        raws = api.items(path_of(wanted.plural), limit=_LATEST_EVENTS if wanted is EVENTS else None)
        raws = selected(api, wanted, raws, selector)
        print_objects(wanted, raws[::-1] if wanted is EVENTS else raws, output, gpus=gpu_names(api))


def _kind_and_names(word: str, names: list[str]) -> tuple[Kind, list[str]]:
    prefix, slash, _ = word.partition("/")
    kind = kind_named(prefix)
    words = [word, *names] if slash else names
    return kind, list(dict.fromkeys(bare_name(kind, name) for name in words))


def _print_named(api: Api, kind: Kind, names: list[str], output: Output) -> None:
    refusals, raws = Refusals(), list[Json]()

    def read(name: str) -> None:
        raw = read_object(api, kind, name)
        if raw not in raws:  # a name and its prefix are one object
            raws.append(raw)

    refusals.each(names, read)
    if raws:
        print_objects(kind, raws, output, single=len(names) == 1, gpus=gpu_names(api))
    refusals.report()


@app.command()
def ps(
    ctx: typer.Context,
    deployment: Annotated[str | None, typer.Argument(help="List only instances of this deployment.")] = None,
    selector: SelectorOption = None,
    watch: WatchOption = False,
    output: ListOutputOption = Format.TABLE,
) -> None:
    """List instances. Each line shows where an instance runs or why it does not, and when a policy will stop it.

    Below them: the deployments that sleep or are stopped, and those of which a limit keeps replicas away.
    """
    with client(ctx, endless=watch) as api:
        of = deployment if deployment is None else checked_name(deployment)
        instances = [] if watch else api.items(path_of(INSTANCES.plural), deployment=of)
        if of is not None and not instances:
            of = str(read_object(api, DEPLOYMENTS, of)["name"])  # raises if the deployment does not exist
            instances = [] if watch or of == deployment else api.items(path_of(INSTANCES.plural), deployment=of)
        if watch:
            from cli.follow.follow import follow  # noqa: PLC0415 - slow to import

            follow(api, INSTANCES, output, selector=selector, deployment=of, with_notes=True)
            return
        gpus = gpu_names(api)
        print_objects(INSTANCES, selected(api, INSTANCES, instances, selector), output, gpus=gpus)
        if not output.for_programs:
            raws = selected(api, DEPLOYMENTS, api.items(path_of(DEPLOYMENTS.plural)), selector)
            views = [read_view(DEPLOYMENTS.view, raw) for raw in raws if of in (None, raw["name"])]
            for line in notes(views):
                print(block(gpus.in_text(line)))


def print_objects(
    kind: Kind, raws: list[Json], output: Output, *, single: bool = False, gpus: GpuNames | None = None
) -> None:
    """`single`: without the envelope of a list. `gpus`: their names, for tables."""
    data = raws[0] if single else {"items": raws}
    if isinstance(output, Names):
        output.write(kind, raws)
        return
    if isinstance(output, Picked):
        output.write(data)
        return
    if isinstance(output, Format) and output.for_programs:
        print_data(data, output)
        return
    now = datetime.now(UTC)
    views = [read_view(kind.view, raw) for raw in raws]
    if kind is EVENTS and output is Format.TABLE:
        views = folded(views, now)
    table = table_of(kind, views, now, wide=output is Format.WIDE, gpus=gpus)
    print_table(table, empty=f"no {kind.plural} found")


def list_all(ctx: typer.Context, kind: Kind, output: Output) -> None:
    with client(ctx) as api:
        print_objects(kind, api.items(path_of(kind.plural)), output)


def read_object(api: Api, kind: Kind, name: str) -> Json:
    """The object of this name, which may be a prefix, or for a GPU as tables print it. Raises as `only_one`."""
    if kind.by_name:
        raw = api.find(path_of(kind.plural, name))
        if raw is not None:
            return raw
        raws = api.items(path_of(kind.plural))
        full = only_one(kind, name, matching(kind, name, raws), raws)
        return next(raw for raw in raws if raw["name"] == full)
    raws = api.items(path_of(kind.plural))
    for raw in raws:
        if name in (str(raw.get("id")), raw.get("name")):
            return raw
    known = [str(raw[field]) for raw in raws for field in ("id", "name") if raw.get(field)]
    raise NotFoundError(f"{kind.singular} {name!r} does not exist{did_you_mean(near(name, known))}")
