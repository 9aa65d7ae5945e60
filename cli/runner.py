"""Runs client verbs: one client, and errors as exit codes. Holds the options that verbs share."""

import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from cli.errors import CliError
from cli.objects.kind import Kind, bare_name
from cli.printing.output import Format
from cli.several import Refusals
from cli.transport.connection import Connection, find_connection
from cli.transport.paths import Json, path_of
from schemas.printing import block
from schemas.units import parse_duration_s

if TYPE_CHECKING:  # slow to import, and `--help` does not need it
    from cli.transport.client import Api

INTERRUPTED: Final = 130
Work = Callable[["Api"], Coroutine[Any, Any, None]]


def parse_seconds(text: object) -> float:
    """Parses a duration of an option, such as `90s` or `5m`, into seconds."""
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until the change is complete, and print the progress.")]
OutputOption = Annotated[Format, typer.Option("--output", "-o", help="Output format.")]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        parser=parse_seconds,
        metavar="DURATION",
        show_default="10m",
        help="Longest time to wait, such as 90s or 5m.",
    ),
]


def complain(error: CliError) -> NoReturn:
    """Prints the error and exits with its code."""
    print(block(f"gpuward: {error}"), file=sys.stderr)
    raise typer.Exit(error.exit_code)


def run(ctx: typer.Context, work: Work, *, endless: bool = False, waits: bool = False) -> None:
    """Runs a verb with a client for the connection of the global flags.

    Args:
        ctx: of the verb.
        work: the verb.
        endless: the verb runs until Ctrl-C, which does not count as a failure then. It may wait, too.
        waits: the verb awaits more than answers, such as time. It gets an event loop, which takes a while to import.
    """
    flags = ctx.find_object(dict) or {}
    try:
        connection = find_connection(
            flags.get("url"), flags.get("key"), context=flags.get("context"), environ=os.environ
        )
        if endless or waits:
            _run_in_loop(connection, work)
        else:
            _run_to_end(connection, work)
    except CliError as error:
        complain(error)
    except KeyboardInterrupt:
        raise typer.Exit(0 if endless else INTERRUPTED) from None


def post(ctx: typer.Context, path: tuple[str, ...], result: str, body: Json | None = None) -> None:
    """Runs a verb that is one POST request, then prints its result."""

    async def work(api: "Api") -> None:
        await api.post(path_of(*path), body)
        print(block(str(result)))

    run(ctx, work)


def post_each(ctx: typer.Context, kind: Kind, names: Sequence[str], verb: str, result: str) -> None:
    """Runs a verb that is one POST request for each name. Each is tried, whatever became of the others.

    Args:
        ctx: of the verb.
        kind: of the objects.
        names: theirs, as `chat` or as `deployment/chat`.
        verb: the last part of the path.
        result: what has become of an object, such as `stopped`.

    Raises:
        typer.Exit: with the code of the refusals if they have one, else 1.
    """

    async def work(api: "Api") -> None:
        async def one(name: str) -> None:
            await api.post(path_of(kind.plural, name, verb), None)
            print(block(f"{kind.singular}/{name} {result}"))

        refusals = Refusals()
        await refusals.each(dict.fromkeys([bare_name(kind, name) for name in names]), one)
        refusals.tell()

    run(ctx, work)


def delete(ctx: typer.Context, path: tuple[str, ...], result: str) -> None:
    """Runs a verb that is one DELETE request, then prints its result."""

    async def work(api: "Api") -> None:
        await api.delete(path_of(*path))
        print(block(str(result)))

    run(ctx, work)


def _run_to_end(connection: Connection, work: Work) -> None:
    from cli.transport.one_server import connected  # noqa: PLC0415 - what waits does not need it

    with connected(connection) as api:
        running = work(api)
        try:
            running.send(None)
        except StopIteration:
            return
        running.close()
        raise AssertionError("a verb that awaits more than answers says so: run(..., waits=True)")


def _run_in_loop(connection: Connection, work: Work) -> None:
    import asyncio  # noqa: PLC0415 - slow to import

    from cli.transport.loop_transport import connect  # noqa: PLC0415 - slow to import

    async def connected() -> SystemExit | None:
        try:
            async with connect(connection) as api:
                await work(api)
        except SystemExit as end:  # raised here, asyncio would print it where the loop has ended before this task
            return end
        return None

    if end := asyncio.run(connected()):
        raise end
