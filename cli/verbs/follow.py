"""Verbs that follow what happens: logs, events."""

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cli.answers import Json, parse, path_of
from cli.errors import CliError, NotFoundError, UnreachableError, UsageError
from cli.figures import printable
from cli.kinds import DEPLOYMENTS, EVENTS, GPUS, INSTANCES, POLICIES, WORKERS, kind_named
from cli.output import Format, print_data
from cli.verb import OutputOption, run
from cli.verbs.look import show
from schemas.api.events import EventView

if TYPE_CHECKING:  # slow to import
    from cli.client import Api

app = typer.Typer()
_MAX_LOGS_AT_ONCE: Final = 64
_EVENTS_PERIOD_S: Final = 1.0
_MAX_EVENTS: Final = 1000


@app.command()
def logs(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(help="A deployment (the logs of all its instances), or an instance's id.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as more is written; Ctrl-C ends it.")] = False,
    previous: Annotated[bool, typer.Option("--previous", help="Of the start before this one.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Only the last lines.")] = None,
) -> None:
    """Print what an engine wrote."""

    async def work(api: "Api") -> None:
        ids = await _instances_named(api, name)
        query = {"tail": tail, "follow": 1 if follow else None, "previous": 1 if previous else None}
        if len(ids) == 1:
            await _copy(api, ids[0], query, prefix=b"")
        elif follow:
            await _copy_together(api, ids, query)
        else:
            for instance in ids:
                await _copy(api, instance, query, prefix=f"[{instance}] ".encode())

    run(ctx, work, endless=follow)


@app.command()
def events(
    ctx: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on as more happens; Ctrl-C ends it.")] = False,
    about: Annotated[str | None, typer.Option("--for", metavar="KIND/NAME", help="Only of this object.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=_MAX_EVENTS, help="How many of the newest.")] = 50,
    output: OutputOption = Format.TABLE,
) -> None:
    """Print what happened, oldest first."""

    async def work(api: "Api") -> None:
        key = _object_named(about) if about is not None else None
        path = path_of(EVENTS.path)
        found = (await api.items(path, limit=limit, object=key))[::-1]
        if not watch:
            show(EVENTS, found, output)
            return
        seen = max((int(raw["id"]) for raw in found), default=0)
        _print_events(found, output)
        while True:
            await asyncio.sleep(_EVENTS_PERIOD_S)
            try:
                found = (await api.items(path, limit=_MAX_EVENTS, object=key, since=seen))[::-1]
            except UnreachableError as error:
                print(f"gpuward: {str(error).splitlines()[0]}; still trying", file=sys.stderr)
                continue
            seen = max((int(raw["id"]) for raw in found), default=seen)
            _print_events(found, output)

    run(ctx, work, endless=watch)


async def _instances_named(api: "Api", name: str) -> list[str]:
    """The instance of this id, or the instances of the deployment of this name."""
    if await api.find(path_of(INSTANCES.path, name)) is not None:
        return [name]
    if await api.find(path_of(DEPLOYMENTS.path, name)) is None:
        raise NotFoundError(f"there is neither a deployment nor an instance {name!r}; see: gpuward ps")
    found = [str(raw["name"]) for raw in await api.items(path_of(INSTANCES.path), deployment=name)]
    if not found:
        raise CliError(f"deployment {name!r} has no instances; see: gpuward describe deployment {name}")
    if len(found) > _MAX_LOGS_AT_ONCE:
        raise CliError(f"deployment {name!r} has {len(found)} instances; name one of them (gpuward ps {name})")
    return found


async def _copy(api: "Api", instance: str, query: dict[str, int | None], *, prefix: bytes) -> None:
    """Copies a log to stdout, untouched, or with a prefix before each whole line."""
    out = sys.stdout.buffer
    rest = b""
    async for chunk in api.stream(path_of(INSTANCES.path, instance, "logs"), **query):
        if not prefix:
            out.write(chunk)
        else:
            *lines, rest = (rest + chunk).split(b"\n")
            out.writelines(prefix + line + b"\n" for line in lines)
        out.flush()
    if rest:
        out.write(prefix + rest + b"\n")
        out.flush()


async def _copy_together(api: "Api", instances: list[str], query: dict[str, int | None]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for instance in instances:
                copying = _copy(api, instance, query, prefix=f"[{instance}] ".encode())
                group.create_task(copying, name=f"logs {instance}")
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures


def _object_named(about: str) -> str:
    """KIND/NAME as the API takes it; it knows deleted ones too."""
    word, slash, name = about.partition("/")
    if not slash or not name:
        raise UsageError(f"--for: {about!r} is not KIND/NAME; write for example deployment/hello")
    return f"{kind_named(word, (DEPLOYMENTS, INSTANCES, WORKERS, GPUS, POLICIES)).singular}/{name}"


def _print_events(found: list[Json], output: Format) -> None:
    for raw in found:
        if output.for_programs:
            print_data(raw, output, in_a_row=True)
            continue
        view = parse(EventView, raw)
        moment = f"{view.at.astimezone(datetime.now(UTC).astimezone().tzinfo):%H:%M:%S}"
        about = f"  {', '.join(view.objects)}" if output is Format.WIDE else ""
        print(printable(f"{moment}  {view.reason}  {view.message}{about}"), flush=True)
