"""A spec's args as command-line flags, and the values of single flags. Shared by all model servers."""

import json
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from controller.engines.base import SpecError
from schemas.manifest.deployment import DeploymentSpec

_FLAG: Final = re.compile(r"[a-z][a-z0-9-]*")
_NUMBER: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([kKmMgG]?)")
# vLLM's suffixes: lower case is decimal, upper case is binary.
_SUFFIXES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
MAX_FIGURE: Final = 10**9
_DOTTED: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[A-Za-z0-9_-]+)+")
# vLLM since 0.14 takes the longest context that its cache holds.
_CHOSEN_BY_SERVER: Final = frozenset({"max-model-len"})
_BY_THE_SERVER: Final = frozenset({"auto", "-1"})


def flag_of(name: str) -> str:
    return name.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Arg:
    """One arg with its flag. Dotted names of one flag are one arg with a mapping."""

    name: str
    flag: str
    value: Any


def args_of(spec: DeploymentSpec) -> list[Arg]:
    """The args in their order. `a.b: 1` and `a.c: 2` are one arg `a` with the mapping of both.

    Raises:
        SpecError: a dotted name occurs twice, or is also the start of another.
    """
    args: list[Arg] = []
    merged: dict[str, dict[str, Any]] = {}
    for name, value in spec.args.items():
        if not _DOTTED.fullmatch(name):
            args.append(Arg(name, flag_of(name), value))
            continue
        head, *keys = name.split(".")
        flag = flag_of(head)
        if flag not in merged:
            merged[flag] = {}
            args.append(Arg(name, flag, merged[flag]))
        _put(merged[flag], keys, value, name)
    return args


def _put(into: dict[str, Any], keys: Sequence[str], value: Any, name: str) -> None:
    for key in keys[:-1]:
        into = into.setdefault(key, {})
        if not isinstance(into, dict):
            raise SpecError(f"args.{name}: {key} has a value already; write only one of them")
    if keys[-1] in into:
        raise SpecError(f"args.{name}: {keys[-1]} is written twice; write only one of them")
    into[keys[-1]] = value


@dataclass(frozen=True, slots=True)
class Writing:
    """How a server reads its command line."""

    # flags that `figure` reads. Their numbers are written in full, since not every server accepts 8k
    figures: Container[str] = ()
    # flags repeated for each value of a list, while all others take several values; None: all flags
    repeated: Container[str] | None = None
    # flags with a `--no-` form; None: all. Of other flags `false` is left out
    switches: Container[str] | None = None
    lists: Container[str] = ()  # flags whose list becomes JSON
    dotted: bool = False  # whether a mapping may be written by dotted names


def flags(spec: DeploymentSpec, how: Writing = Writing()) -> list[str]:
    """The args as flags: true is a bare flag, false its `--no-` form, a list one flag with all values. Null: left out.

    A mapping becomes JSON.

    Raises:
        SpecError: names the arg.
    """
    argv: list[str] = []
    for arg in args_of(spec):
        flag = arg.flag
        if not _FLAG.fullmatch(flag) or ("." in arg.name and not how.dotted):
            raise SpecError(f"args.{arg.name}: not a valid flag name; write it without dashes in front, such as dtype")
        plain = figure(spec, flag) if flag in how.figures else None
        if isinstance(arg.value, bool):
            off = [f"--no-{flag}"] if how.switches is None or flag in how.switches else []
            argv += [f"--{flag}"] if arg.value else off
            continue
        words = _words(arg, how) if plain is None else [str(plain)]
        if how.repeated is None or flag in how.repeated:
            argv += [part for word in words for part in (f"--{flag}", word)]
        elif words:
            argv += [f"--{flag}", *words]
    return argv


def _words(arg: Arg, how: Writing) -> list[str]:
    if isinstance(arg.value, list) and arg.flag in how.lists:
        return [json_text(arg.value, arg.name)]
    items = [item for item in (arg.value if isinstance(arg.value, list) else [arg.value]) if item is not None]
    if any(isinstance(item, bool) for item in items):
        raise SpecError(f"args.{arg.name}: a list may hold only numbers, strings and mappings")
    return [json_text(item, arg.name) if isinstance(item, dict | list) else str(item) for item in items]


def json_text(value: Any, name: str) -> str:
    """Raises SpecError for a number that JSON does not have."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise SpecError(f"args.{name}: holds a number that JSON cannot write; use a finite one") from None


def stated(spec: DeploymentSpec, names: Iterable[str]) -> Any:
    """The value of the first of these flags that is set; else None."""
    given = {arg.flag: arg.value for arg in args_of(spec)}
    return next((given[name] for name in names if given.get(name) is not None), None)


def figure(spec: DeploymentSpec, *names: str) -> int | None:
    """The value of the first of these flags that is set, such as 8192 or 8k; None if none is, or the server chooses it.

    Raises:
        SpecError: it is not a whole number above 0.
    """
    value = stated(spec, names)
    if value is None or (str(value) in _BY_THE_SERVER and not _CHOSEN_BY_SERVER.isdisjoint(names)):
        return None
    match = None if isinstance(value, bool) else _NUMBER.fullmatch(str(value))
    number = Decimal(0) if match is None else Decimal(match[1]) * _SUFFIXES[match[2]]
    if not 0 < number <= MAX_FIGURE or number % 1:
        given = next(name for name in spec.args if flag_of(name) in names and spec.args[name] is not None)
        raise SpecError(f"args.{given}: must be a whole number above 0, such as 8192")
    return int(number)


def text(spec: DeploymentSpec, *names: str) -> str | None:
    """The value of the first of these flags that is set, as text; else None."""
    value = stated(spec, names)
    return None if value is None else json_text(value, names[0]) if isinstance(value, dict) else str(value)
