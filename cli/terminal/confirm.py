"""Asks before what cannot be undone."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cli.errors import CliError, UsageError
from cli.text.formatting import printable

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Delete without a question.")]


def confirm_deletion(names: Sequence[str], *, yes: bool) -> None:
    """Shows what is to be deleted, and returns once that is agreed to.

    Raises:
        UsageError: there is no terminal to ask on, and `yes` was not given.
        CliError: the answer is no.
    """
    for name in names:
        print(printable(f"will be deleted: {name}"), file=sys.stderr, flush=True)
    if names:
        confirm(f"Delete {len(names)}?", yes=yes, otherwise="to delete these")


def confirm(question: str, *, yes: bool, otherwise: str = "to go on") -> None:
    """Asks, and returns once that is agreed to. `otherwise`: what `--yes` is for, where there is no terminal.

    Raises:
        UsageError: there is no terminal to ask on, and `yes` was not given.
        CliError: the answer is no.
    """
    if yes:
        return
    if not _asks():
        raise UsageError(f"nothing was changed: there is no terminal to ask on; add --yes {otherwise}")
    if not typer.confirm(question, default=False, err=True):
        raise CliError("nothing was changed")


def confirm_at_terminal(question: str, *, yes: bool) -> None:
    """Asks where there is a terminal, and returns once that is agreed to; without one it returns at once.

    Raises:
        CliError: the answer is no.
    """
    if _asks():
        confirm(question, yes=yes)


def _asks() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()  # a question that goes to a file waits for ever
