"""The verb `events`."""

import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from cli.errors import UnreachableError, UsageError
from cli.objects.kinds import DEPLOYMENTS, EVENTS, GPUS, INSTANCES, POLICIES, WORKERS, kind_named, main_subject
from cli.printing.output import Format, print_data
from cli.runner import OutputOption, client
from cli.text.formatting import or_dash, printable
from cli.transport.paths import Json, parse, path_of
from cli.verbs.get import print_objects
from schemas.api.events import EventView

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
        key = _object_named(about) if about is not None else None
        path = path_of(EVENTS.plural)
        only = {"object": key, "reason": ",".join(reason or ()) or None}
        most = limit or (_EVENTS if since is None else _MAX_EVENTS)
        raws = api.items(path, limit=most, after=since, **only)[::-1]
        if not watch:
            print_objects(EVENTS, raws, output)
            return
        last_id = max((int(raw["id"]) for raw in raws), default=0)
        _print_events(raws, output)
        while True:
            time.sleep(_EVENTS_PERIOD_S)
            try:
                raws = api.items(path, limit=_MAX_EVENTS, since=last_id, **only)[::-1]
            except UnreachableError as error:
                print(printable(f"gpuward: {str(error).splitlines()[0]}; retrying"), file=sys.stderr)
                continue
            last_id = max((int(raw["id"]) for raw in raws), default=last_id)
            _print_events(raws, output)


def _object_named(about: str) -> str:
    """KIND/NAME in the form of the API. The object need not exist any more."""
    word, slash, name = about.partition("/")
    if not slash or not name:
        raise UsageError(f"--for: {about!r} is not KIND/NAME; write for example deployment/hello")
    return f"{kind_named(word, (DEPLOYMENTS, INSTANCES, WORKERS, GPUS, POLICIES)).singular}/{name}"


def _print_events(raws: list[Json], output: Format) -> None:
    for raw in raws:
        if output.for_programs:
            print_data(raw, output, in_a_row=True)
            continue
        view = parse(EventView, raw)
        time_of_day = f"{view.at.astimezone(datetime.now(UTC).astimezone().tzinfo):%H:%M:%S}"
        more = (view.request_id, ", ".join(view.objects)) if output is Format.WIDE else ()
        parts = (time_of_day, view.reason, main_subject(view), or_dash(view.actor), view.message, *filter(None, more))
        print(printable("  ".join(parts)), flush=True)
