"""Questions before actions that cannot be undone."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from cli.errors import CliError, UsageError
from cli.text.formatting import printable

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Delete without a question.")]


def confirm_deletion(names: Sequence[str], *, yes: bool) -> None:
    """Prints the names, and confirms their deletion. Raises as `confirm`."""
    for name in names:
        print(printable(f"will be deleted: {name}"), file=sys.stderr, flush=True)
    if names:
        confirm(f"Delete {len(names)}?", yes=yes, otherwise="to delete these")


def confirm(question: str, *, yes: bool, otherwise: str = "to go on") -> None:
    """Returns once the user agrees. `otherwise`: the purpose of `--yes` in the error without a terminal.

    Raises:
        UsageError: there is no terminal, and `yes` was not given.
        CliError: the answer is no.
    """
    if yes:
        return
    if not _has_terminal():
        raise UsageError(f"nothing was changed: there is no terminal to ask on; add --yes {otherwise}")
    if not typer.confirm(question, default=False, err=True):
        raise CliError("nothing was changed")


def confirm_at_terminal(question: str, *, yes: bool) -> None:
    """As `confirm` on a terminal; without a terminal returns at once."""
    if _has_terminal():
        confirm(question, yes=yes)


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()  # a question in a file would never be answered
