"""A spec's args as command-line flags, and the values of single flags. Shared by all model servers."""

import json
import re
from collections.abc import Container, Iterable
from decimal import Decimal
from typing import Any, Final

from controller.engines.base import SpecError
from schemas.manifest.deployment import DeploymentSpec

_FLAG: Final = re.compile(r"[a-z][a-z0-9-]*")
_NUMBER: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([kKmMgG]?)")
# vLLM's suffixes: lower case is decimal, upper case is binary.
_SUFFIXES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
MAX_FIGURE: Final = 10**9


def flag_of(name: str) -> str:
    """The flag of an arg: `max-model-len` for `max_model_len`."""
    return name.replace("_", "-")


def flags(
    spec: DeploymentSpec,
    figures: Container[str] = (),
    repeated: Container[str] | None = None,
    *,
    negated: bool = True,
) -> list[str]:
    """The args as flags: true is a bare flag, false its `--no-` form, a list one flag with all values, null nothing.

    Args:
        spec: of the deployment.
        figures: flags that `figure` reads. They are written in full, since not every server accepts 8k.
        repeated: flags repeated for each value of a list; None: all flags.
        negated: whether the server's switches have a `--no-` form; else a switch that is off is left out.

    Raises:
        SpecError: names the arg.
    """
    argv: list[str] = []
    for name, value in spec.args.items():
        flag = flag_of(name)
        if not _FLAG.fullmatch(flag):
            raise SpecError(f"args.{name}: not a valid flag name; write it without dashes in front, such as dtype")
        plain = figure(spec, flag) if flag in figures else None
        if isinstance(value, bool):
            argv += [f"--{flag}"] if value else [f"--no-{flag}"] if negated else []
            continue
        items = [item for item in (value if isinstance(value, list) else [value]) if item is not None]
        if any(isinstance(item, list | dict) for item in items):
            text = json.dumps(value, separators=(",", ":"))
            raise SpecError(f"args.{name}: nested values are written as JSON text: '{text}'")
        if any(isinstance(item, bool) for item in items):
            raise SpecError(f"args.{name}: a list may hold only numbers and strings")
        words = [str(item) for item in items] if plain is None else [str(plain)]
        if repeated is None or flag in repeated:
            argv += [part for word in words for part in (f"--{flag}", word)]
        elif words:
            argv += [f"--{flag}", *words]
    return argv


def stated(spec: DeploymentSpec, names: Iterable[str]) -> Any:
    """The value of the first of these flags that is set; None if none is."""
    given = {flag_of(name): value for name, value in spec.args.items()}
    return next((given[name] for name in names if given.get(name) is not None), None)


def figure(spec: DeploymentSpec, *names: str) -> int | None:
    """A whole number above 0 from the first of these flags that is set, such as 8192 or 8k; None if none is.

    Raises:
        SpecError: names the arg if it is not such a number.
    """
    value = stated(spec, names)
    if value is None:
        return None
    match = None if isinstance(value, bool) else _NUMBER.fullmatch(str(value))
    found = Decimal(0) if match is None else Decimal(match[1]) * _SUFFIXES[match[2]]
    if not 0 < found <= MAX_FIGURE or found % 1:
        given = next(name for name in spec.args if flag_of(name) in names and spec.args[name] is not None)
        raise SpecError(f"args.{given}: must be a whole number above 0, such as 8192")
    return int(found)


def text(spec: DeploymentSpec, *names: str) -> str | None:
    """The value of the first of these flags that is set, as text; None if none is."""
    value = stated(spec, names)
    return None if value is None else str(value)
