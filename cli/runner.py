"""Runs client verbs: one event loop, one client, and errors as exit codes. Holds the options that verbs share."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from cli.api import Json, path_of
from cli.connection import find_connection
from cli.errors import CliError
from cli.output import Format
from schemas.printing import block
from schemas.quantities import parse_duration_s

if TYPE_CHECKING:  # slow to import, and `--help` does not need it
    from cli.client import Api

INTERRUPTED: Final = 130


def parse_seconds(text: object) -> float:
    """Parses a duration of an option, such as `90s` or `5m`, into seconds."""
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


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


def run(ctx: typer.Context, work: Callable[["Api"], Awaitable[None]], *, endless: bool = False) -> None:
    """Runs a verb with a client for the connection of the global flags.

    Args:
        ctx: of the verb.
        work: the verb.
        endless: the verb runs until Ctrl-C, which does not count as a failure then.
    """
    try:
        asyncio.run(_run_connected(ctx, work))
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


def delete(ctx: typer.Context, path: tuple[str, ...], result: str) -> None:
    """Runs a verb that is one DELETE request, then prints its result."""

    async def work(api: "Api") -> None:
        await api.delete(path_of(*path))
        print(block(str(result)))

    run(ctx, work)


async def _run_connected(ctx: typer.Context, work: Callable[["Api"], Awaitable[None]]) -> None:
    from cli.client import connect  # noqa: PLC0415 - slow to import

    flags = ctx.find_object(dict) or {}
    async with connect(find_connection(flags.get("url"), flags.get("key"), environ=os.environ)) as api:
        await work(api)
