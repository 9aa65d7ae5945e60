"""Asks before several objects are deleted that a selector has picked."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cli.errors import CliError, UsageError
from cli.formatting import printable

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Delete without a question.")]


def confirm_deletion(names: Sequence[str], *, yes: bool) -> None:
    """Shows what is to be deleted, and returns once that is agreed to.

    Raises:
        UsageError: there is no terminal to ask on, and `yes` was not given.
        CliError: the answer is no.
    """
    for name in names:
        print(printable(f"will be deleted: {name}"), file=sys.stderr, flush=True)
    if yes or not names:
        return
    if not _asks():
        raise UsageError("nothing was changed: there is no terminal to ask on; add --yes to delete these")
    if not typer.confirm(f"Delete {len(names)}?", default=False, err=True):
        raise CliError("nothing was changed")


def _asks() -> bool:
    return sys.stdin.isatty()
