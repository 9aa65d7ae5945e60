"""Shared by verbs: a client, errors as exit codes, and options."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Final, NoReturn

import typer

from cli.errors import CliError, UsageError
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
    """Seconds of a duration such as `90s` or `5m`."""
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


def parse_labels(pairs: Iterable[str], example: str = "gpuward.io/zone=a") -> dict[str, str]:
    """Labels from KEY=VALUE pairs. Raises `UsageError` if one is not KEY=VALUE."""
    labels = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise UsageError(f"--label: must be KEY=VALUE, such as {example}, got {pair[:80]!r}")
        labels[key] = value
    return labels


def complain(error: CliError) -> NoReturn:
    print(block(f"gpuward: {error}"), file=sys.stderr)
    raise typer.Exit(error.exit_code)


@contextmanager
def complaining() -> Iterator[None]:
    """In this block a `CliError` ends the program with its message and its code."""
    try:
        yield
    except CliError as error:
        complain(error)


@contextmanager
def client(ctx: typer.Context, *, endless: bool = False) -> Iterator[Api]:
    """A client for the connection of the global flags. In this block errors end the program with their codes.

    `endless`: the verb runs until Ctrl-C, which then counts as success.
    """
    from cli.transport.client import connected  # noqa: PLC0415 - slow to import, and `--help` does not need it

    flags = ctx.find_object(dict) or {}
    try:
        with complaining():
            connection = find_connection(
                flags.get("url"), flags.get("key"), context=flags.get("context"), environ=os.environ
            )
            with connected(connection) as api:
                yield api
    except KeyboardInterrupt:
        raise typer.Exit(0 if endless else INTERRUPTED) from None


def post(ctx: typer.Context, path: tuple[str, ...], result: str, body: Json | None = None) -> None:
    with client(ctx) as api:
        api.post(path_of(*path), body)
        print(block(result))


def post_each(ctx: typer.Context, kind: Kind, names: Sequence[str], verb: str, result: str) -> None:
    """A verb that is one POST request for each name, such as `chat` or `deployment/chat`. Each is tried.

    `verb` is the last part of the path; `result` is printed for each object, such as `stopped`.
    """
    with client(ctx) as api:

        def send(name: str) -> None:
            api.post(path_of(kind.plural, name, verb), None)
            print(block(f"{kind.singular}/{name} {result}"))

        refusals = Refusals()
        refusals.each(dict.fromkeys([bare_name(kind, name) for name in names]), send)
        refusals.report()


def delete(ctx: typer.Context, path: tuple[str, ...], result: str) -> None:
    with client(ctx) as api:
        api.delete(path_of(*path))
        print(block(result))
