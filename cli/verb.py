"""How a client verb runs: one loop, one client, and a typed error made an exit code."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from cli.connection import find_connection
from cli.errors import CliError
from cli.output import Format
from schemas.quantities import parse_duration_s

if TYPE_CHECKING:  # slow to import, and `--help` needs none of it
    from cli.client import Api

INTERRUPTED: Final = 130


def seconds(text: object) -> float:
    """An option's duration, such as `90s` or `5m`, in seconds."""
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


OutputOption = Annotated[Format, typer.Option("--output", "-o", help="How to print.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", parser=seconds, metavar="DURATION", help="Wait no longer, such as 90s or 5m.")
]


def complain(error: CliError) -> NoReturn:
    """Prints what is wrong and ends the program with the error's exit code."""
    print(f"gpuward: {error}", file=sys.stderr)
    raise typer.Exit(error.exit_code)


def run(ctx: typer.Context, work: Callable[["Api"], Awaitable[None]], *, endless: bool = False) -> None:
    """Runs `work` with a client of the connection that the flags before the verb name.

    Args:
        ctx: of the verb.
        work: the verb.
        endless: Ctrl-C is how it ends, and no failure.
    """
    try:
        asyncio.run(_connected(ctx, work))
    except CliError as error:
        complain(error)
    except KeyboardInterrupt:
        raise typer.Exit(0 if endless else INTERRUPTED) from None


async def _connected(ctx: typer.Context, work: Callable[["Api"], Awaitable[None]]) -> None:
    from cli.client import connect  # noqa: PLC0415 - slow to import

    flags = ctx.find_object(dict) or {}
    async with connect(find_connection(flags.get("url"), flags.get("key"), environ=os.environ)) as api:
        await work(api)
