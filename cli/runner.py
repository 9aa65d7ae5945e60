"""What verbs share: a client, errors as exit codes, and options."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final, NoReturn

import typer

from cli.errors import CliError
from cli.objects.kind import Kind, bare_name
from cli.printing.output import Format
from cli.several import Refusals
from cli.transport.client import Api
from cli.transport.connection import find_connection
from cli.transport.paths import Json, path_of
from schemas.printing import block
from schemas.units import parse_duration_s

INTERRUPTED: Final = 130


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


@contextmanager
def complaining() -> Iterator[None]:
    """Within it a `CliError` ends the program with its message and its code."""
    try:
        yield
    except CliError as error:
        complain(error)


@contextmanager
def client(ctx: typer.Context, *, endless: bool = False) -> Iterator[Api]:
    """A client for the connection of the global flags. Within it errors end the program with their codes.

    `endless`: until Ctrl-C, which does not count as a failure then.
    """
    from cli.transport.client import connected  # noqa: PLC0415 - slow to import, and `--help` does not need it

    flags = ctx.find_object(dict) or {}
    try:
        with complaining():
            found = find_connection(
                flags.get("url"), flags.get("key"), context=flags.get("context"), environ=os.environ
            )
            with connected(found) as api:
                yield api
    except KeyboardInterrupt:
        raise typer.Exit(0 if endless else INTERRUPTED) from None


def post(ctx: typer.Context, path: tuple[str, ...], result: str, body: Json | None = None) -> None:
    """Runs a verb that is one POST request, then prints its result."""
    with client(ctx) as api:
        api.post(path_of(*path), body)
        print(block(str(result)))


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
    with client(ctx) as api:

        def one(name: str) -> None:
            api.post(path_of(kind.plural, name, verb), None)
            print(block(f"{kind.singular}/{name} {result}"))

        refusals = Refusals()
        refusals.each(dict.fromkeys([bare_name(kind, name) for name in names]), one)
        refusals.report()


def delete(ctx: typer.Context, path: tuple[str, ...], result: str) -> None:
    """Runs a verb that is one DELETE request, then prints its result."""
    with client(ctx) as api:
        api.delete(path_of(*path))
        print(block(str(result)))
