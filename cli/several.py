"""Several objects in one call: each is tried, even after refusals, and each refusal is reported."""

import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

from cli.errors import CliError, UnreachableError
from schemas.printing import block

T = TypeVar("T")


class Refusals:
    """The errors of a call so far."""

    def __init__(self) -> None:
        self._errors: dict[str, CliError] = {}  # by message, so that an error of all objects is reported once

    def each(self, things: Iterable[T], do: Callable[[T], None]) -> None:
        """Calls `do` for each thing, until no controller answers."""
        for thing in things:
            try:
                do(thing)
            except CliError as error:
                self._errors[str(error)] = error
                if isinstance(error, UnreachableError):
                    return

    def report(self) -> None:
        """Prints all refusals but the last, which it raises with the exit code that all have in common, else 1."""
        errors = list(self._errors.values())
        for error in errors[:-1]:
            print(block(f"gpuward: {error}"), file=sys.stderr)
        if errors:
            same_code = len({error.exit_code for error in errors}) == 1
            raise errors[-1] if same_code else CliError(str(errors[-1]))
