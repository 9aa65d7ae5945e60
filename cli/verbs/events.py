"""The verb `events`."""

import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple

import typer

from cli.errors import UnreachableError, UsageError
from cli.objects.gpus import gpu_names
from cli.objects.kind import Kind
from cli.objects.kinds import DEPLOYMENTS, EVENTS, GPUS, INSTANCES, POLICIES, WORKERS, kind_named, main_subject
from cli.objects.names import nearest, printed_gpus
from cli.printing.output import Format, print_data
from cli.runner import OutputOption, client
from cli.text.formatting import or_dash, printable
from cli.text.gpu_names import GpuNames
from cli.transport.client import Api
from cli.transport.near_names import did_you_mean
from cli.transport.paths import Json, parse, path_of
from cli.verbs.get import print_objects
from schemas.api.events import EventView
from schemas.printing import block

app = typer.Typer()
_EVENTS_PERIOD_S: Final = 1.0
_EVENTS: Final = 50
_MAX_EVENTS: Final = 1000


@app.command()
def events(
    ctx: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow new events until Ctrl-C.")] = False,
    about: Annotated[
        str | None, typer.Option("--for", metavar="KIND/NAME", help="List only events of this object.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="List only later events: 10m, or 2026-11-23T14:05:00Z."),
    ] = None,
    reason: Annotated[
        list[str] | None, typer.Option("--reason", help="List only events of this reason code. Several may be given.")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit", min=1, max=_MAX_EVENTS, help="Number of events, the newest ones. Default: 50, with --since 1000."
        ),
    ] = None,
    output: OutputOption = Format.TABLE,
) -> None:
    """List events, oldest first."""
    with client(ctx, endless=watch) as api:
        gpus = gpu_names(api)
        subject = _object_named(api, about) if about is not None else None
        path = path_of(EVENTS.plural)
        only = {
            "object": subject and f"{subject.kind.singular}/{subject.name}",
            "reason": ",".join(reason or ()) or None,
        }
        most = limit or (_EVENTS if since is None else _MAX_EVENTS)
        raws = api.items(path, limit=most, after=since, **only)[::-1]
        if not watch:
            print_objects(EVENTS, raws, output, gpus=gpus)
            if subject is not None and not raws and not output.for_programs:
                _suggest(api, subject)
            return
        last_id = max((int(raw["id"]) for raw in raws), default=0)
        _print_events(raws, output, gpus)
        while True:
            time.sleep(_EVENTS_PERIOD_S)
            try:
                raws = api.items(path, limit=_MAX_EVENTS, since=last_id, **only)[::-1]
            except UnreachableError as error:
                print(printable(f"gpuward: {str(error).splitlines()[0]}; retrying"), file=sys.stderr)
                continue
            last_id = max((int(raw["id"]) for raw in raws), default=last_id)
            _print_events(raws, output, gpus)


class _Subject(NamedTuple):
    """What events are about. `gpus`: all GPUs, where none has the name."""

    kind: Kind
    name: str
    gpus: list[Json] | None = None


def _object_named(api: Api, about: str) -> _Subject:
    """The object that KIND/NAME means. It need not exist any more. A GPU may have its name of tables."""
    word, slash, name = about.partition("/")
    if not slash or not name:
        raise UsageError(f"--for: {about!r} is not KIND/NAME; write for example deployment/hello")
    kind = kind_named(word, (DEPLOYMENTS, INSTANCES, WORKERS, GPUS, POLICIES))
    if kind is GPUS and api.find(path_of(GPUS.plural, name)) is None:
        gpus = api.items(path_of(GPUS.plural))
        uuids = printed_gpus(name, gpus)
        return _Subject(kind, uuids[0]) if len(uuids) == 1 else _Subject(kind, name, gpus)
    return _Subject(kind, name)


def _suggest(api: Api, subject: _Subject) -> None:
    """Prints the names that are like a name which no object has."""
    kind, name, raws = subject
    if raws is None:
        if kind is GPUS or api.find(path_of(kind.plural, name)) is not None:
            return
        raws = api.items(path_of(kind.plural))
    if names := nearest(kind, name, raws):
        print(block(f"no {kind.singular} has the name {name!r}{did_you_mean(names)}"), file=sys.stderr)


def _print_events(raws: list[Json], output: Format, gpus: GpuNames) -> None:
    for raw in raws:
        if output.for_programs:
            print_data(raw, output, in_a_row=True)
            continue
        view = parse(EventView, raw)
        time_of_day = f"{view.at.astimezone(datetime.now(UTC).astimezone().tzinfo):%H:%M:%S}"
        more = (view.request_id, ", ".join(view.objects)) if output is Format.WIDE else ()
        parts = (time_of_day, view.reason, main_subject(view), or_dash(view.actor), view.message, *filter(None, more))
        line = "  ".join(parts)
        print(printable(line if output is Format.WIDE else gpus.in_text(line)), flush=True)
