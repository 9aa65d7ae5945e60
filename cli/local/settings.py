"""Flags of the daemons' verbs as settings, with errors that name the flag."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from cli.errors import UsageError
from cli.runner import complain


def validated(settings: Callable[..., Any], **given: object) -> Any:
    """Settings from flags; what is missing comes from the environment and defaults. Ends the program where invalid."""
    try:
        return settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        lines = [f"  {_option(problem['loc'])}: {problem['msg']}" for problem in error.errors()]
        complain(UsageError("\n".join(["the settings are not valid:", *lines])))


def _option(where: tuple[int | str, ...]) -> str:
    name = str(where[0]) if where else "(settings)"
    flag = {"controller_url": "--controller", "labels": "--label"}.get(name, "--" + name.lower().replace("_", "-"))
    return f"{flag} ({'.'.join(str(part) for part in where)})"


def labels_of(pairs: list[str]) -> dict[str, str]:
    """Labels from `KEY=VALUE` pairs; ends the program where one is not such a pair."""
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            complain(UsageError(f"--label: {pair!r} is not KEY=VALUE; write for example zone=a"))
        labels[name] = value
    return labels
