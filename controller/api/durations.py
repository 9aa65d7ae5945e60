"""Query parameters that are durations."""

from collections.abc import Mapping

from controller.api.errors import invalid
from schemas.manifest.problems import FieldProblem
from schemas.quantities import parse_duration_s


def duration_s(parameters: Mapping[str, str], name: str, *, low: float, high: float) -> float | None:
    """Seconds of a parameter such as `10m`; None where it is left out.

    Raises:
        ApiError: 400 where it is no duration, or not between `low` and `high` seconds.
    """
    text = parameters.get(name)
    if text is None:
        return None
    try:
        seconds = parse_duration_s(text)
    except ValueError as error:
        raise invalid([FieldProblem(name, str(error))]) from error
    if not low <= seconds <= high:
        raise invalid([FieldProblem(name, f"is {text[:40]!r}; write a duration from {low:g}s to {high / 86_400:g}d")])
    return seconds
