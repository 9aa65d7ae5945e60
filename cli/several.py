"""Several objects in one call: each is tried, whatever became of the others, and each refusal is reported."""

import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

from cli.errors import CliError, UnreachableError
from schemas.printing import block

T = TypeVar("T")


class Refusals:
    """What was refused so far."""

    def __init__(self) -> None:
        self._errors: dict[str, CliError] = {}  # by its message: an error that all have is reported once

    def each(self, things: Iterable[T], do: Callable[[T], None]) -> None:
        """Does it for each thing. Where no controller answers, the rest is left out."""
        for thing in things:
            try:
                do(thing)
            except CliError as error:
                self._errors[str(error)] = error
                if isinstance(error, UnreachableError):
                    return

    def report(self) -> None:
        """Prints all refusals but the last one.

        Raises:
            CliError: the last refusal; its exit code is the one that they have in common, else 1.
        """
        errors = list(self._errors.values())
        for one in errors[:-1]:
            print(block(f"gpuward: {one}"), file=sys.stderr)
        if errors:
            one_code = len({one.exit_code for one in errors}) == 1
            raise errors[-1] if one_code else CliError(str(errors[-1]))
