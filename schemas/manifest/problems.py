"""Problems of manifests, unknown keys among others: the path of the field, the problem, and the fix."""

import difflib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

# Pydantic's own message for these fields would show a pattern, which does not help a user.
_FIXES: Final[Mapping[str, str]] = {
    "name": "is not a valid name; write at most 63 lower case letters, digits and '-', such as qwen3-32b",
    "model": "is not a valid model; write hf:org/name[@revision], path:/folder/on/the/worker or gguf:/file",
    "secret": "is not a valid name of a secret; write lower case letters, digits and '-'",
    "path": "is not a valid URL path; write one that starts with '/', such as /health",
}
_WORDS: Final[Mapping[str, str]] = {  # Pydantic names the types of Python
    "a valid tuple": "a list, such as [a, b]",
    "a valid list": "a list, such as [a, b]",
    "a valid dictionary": "a mapping, such as {a: b}",
    "a valid string": "text in quotes",
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid integer, got a number with a fractional part": "a whole number",
    "a valid integer": "a whole number",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
_SECRETIVE: Final = "env"  # its values may be secrets, so messages never repeat them
_SHOWN_CHARS: Final = 80
_MOST_PLACES: Final = 3  # of a key in other sections: more would not help
# Problems in an answer: advice on each takes half a millisecond, and a body may have a hundred thousand.
MOST_PROBLEMS: Final = 100


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One invalid field."""

    path: str  # such as `resources.gpus` or `[1].placement.gpus[0]`; empty for the complete document
    message: str  # the problem and the fix

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ManifestError(ValueError):
    """A manifest is not valid. `problems` names every invalid field, up to `MOST_PROBLEMS` of them."""

    def __init__(self, problems: Sequence[FieldProblem]) -> None:
        more = FieldProblem("", f"has more problems than these {MOST_PROBLEMS}; mend them first")
        self.problems = tuple(problems) if len(problems) <= MOST_PROBLEMS else (*problems[:MOST_PROBLEMS], more)
        super().__init__("; ".join(str(problem) for problem in self.problems))


def join_path(base: str, step: str | int) -> str:
    """`a.b`, `a[0]`."""
    if isinstance(step, int):
        return f"{base}[{step}]"
    return f"{base}.{step}" if base else step


def nearest(word: str, known: Iterable[str]) -> str:
    """Advice for an unknown word: the most similar known word, else all of them."""
    words = sorted(known)
    close = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words)}"


def from_validation(error: ValidationError, data: object, base: str = "") -> list[FieldProblem]:
    """Turns pydantic's errors into problems. The errors of all alternatives of a field become one problem."""
    by_path: dict[str, list[str]] = {}
    for item in error.errors(include_url=False, include_context=False):
        if item["type"] == "extra_forbidden":  # `unknown_keys` reports it with advice
            continue
        path = base
        for step in _written_steps(item["loc"], data, missing=item["type"] == "missing"):
            path = join_path(path, step)
        message = _message(item)
        if item["type"] == "value_error" and not item["loc"]:
            # The message of a rule between fields starts with a field: `command: is required ...`.
            field, _, rest = message.partition(": ")
            if rest and field.isidentifier():
                path, message = join_path(base, field), rest
        messages = by_path.setdefault(path, [])
        if message not in messages:
            messages.append(message)
        if len(by_path) > MOST_PROBLEMS:
            break
    return [FieldProblem(path, _alternatives(messages)) for path, messages in by_path.items()]


def most_specific(problems: Sequence[FieldProblem]) -> list[FieldProblem]:
    """Drops the problem of a field that contains another invalid field."""
    paths = sorted(problem.path for problem in problems)

    def begins_another(start: str) -> bool:
        at = bisect_left(paths, start)
        return at < len(paths) and paths[at].startswith(start)

    def is_outer(path: str) -> bool:
        return bool(path) and (begins_another(f"{path}.") or begins_another(f"{path}["))

    return [problem for problem in problems if not is_outer(problem.path)]


def _written_steps(location: tuple[str | int, ...], data: Any, *, missing: bool) -> Iterator[str | int]:
    """The steps of a location that exist in `data`. Pydantic puts names of alternatives between them."""
    for position, step in enumerate(location):
        in_list = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if in_list or (isinstance(data, dict) and step in data):
            data = data[step]
        elif not (missing and position == len(location) - 1):
            continue
        yield step


def _message(item: Any) -> str:
    kind, location = item["type"], item["loc"]
    if kind == "missing":
        return "is required; add it"
    text: str = item["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return text
    secretive = _SECRETIVE in location
    if secretive and kind in ("string_type", "model_type"):
        return "must be text, or {secret: NAME} for a stored secret"
    given = "" if secretive else f"{_shown(item['input'])} "
    if kind == "string_pattern_mismatch" and location and location[-1] in _FIXES:
        return given + _FIXES[str(location[-1])]
    text = (text[0].lower() + text[1:]).replace("input should", "must")
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    return text + ("" if secretive else f", got {_shown(item['input'])}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def _alternatives(messages: list[str]) -> str:
    """Joins the messages of a field's alternatives, and shows the value only once."""
    if len(messages) == 1:
        return messages[0]
    heads = [message.rpartition(", got ")[0] or message for message in messages[:-1]]
    return " or ".join([*heads, messages[-1].removeprefix("must ").removeprefix("be ")]) if heads else messages[-1]


def unknown_keys(
    model: type[BaseModel], data: object, base: str = "", root: type[BaseModel] | None = None
) -> Iterator[FieldProblem]:
    """The unknown keys at any depth, each with its places in other sections of `root`, else the most similar key.

    `root`: the model of the complete document. Default: `model`.
    """
    if not isinstance(data, dict):
        return
    root = root or model
    fields = model.model_fields
    for key, value in data.items():
        path = join_path(base, str(key))
        if key not in fields:
            elsewhere = _places(root).get(key, ())
            yield FieldProblem(path, f"unknown key; {_moved(elsewhere) or nearest(str(key), fields)}")
            continue
        yield from _unknown_within(fields[key].annotation, value, path, root)


def _moved(places: Sequence[str]) -> str:
    """Advice to write a key at one of few places; empty for none, and for more."""
    if not 0 < len(places) <= _MOST_PLACES:
        return ""
    shown = [repr(place) if "." in place else f"{place!r} at the top level" for place in places]
    return f"did you mean {' or '.join(shown)}?"


@cache
def _places(model: type[BaseModel]) -> Mapping[str, tuple[str, ...]]:
    """The paths of each key in a model and its sections. Items of lists and mappings are no sections."""
    places: dict[str, list[str]] = {}

    def walk(section: type[BaseModel], before: str) -> None:
        for key, field in section.model_fields.items():
            places.setdefault(key, []).append(before + key)
            for inner in _models_in(field.annotation):
                walk(inner, f"{before}{key}.")

    walk(model, "")
    return {key: tuple(dict.fromkeys(paths)) for key, paths in places.items()}


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that a value may be itself."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _models_in(get_args(annotation)[0])
    elif _is_union(annotation):
        for choice in get_args(annotation):
            yield from _models_in(choice)


def _is_union(annotation: Any) -> bool:
    return get_origin(annotation) is Union or type(annotation).__name__ == "UnionType"


def _unknown_within(annotation: Any, value: object, path: str, root: type[BaseModel]) -> Iterator[FieldProblem]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from unknown_keys(annotation, value, path, root)
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from _unknown_within(arguments[0], value, path, root)
    elif not _holds_model(annotation):
        return  # not descended: there may be many values, each with a path
    elif origin is dict and isinstance(value, dict):
        for key, inner in value.items():
            yield from _unknown_within(arguments[1], inner, join_path(path, str(key)), root)
    elif origin in (list, tuple) and isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _unknown_within(arguments[0], inner, join_path(path, index), root)
    elif _is_union(annotation):
        for choice in arguments:
            yield from _unknown_within(choice, value, path, root)


def _holds_model(annotation: Any) -> bool:
    """Whether any value of this type has keys that a schema knows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(_holds_model(argument) for argument in get_args(annotation))
