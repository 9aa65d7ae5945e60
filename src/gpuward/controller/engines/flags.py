"""A spec's args as the flags of a command line, and single flags read back: shared by all servers of models."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuward.controller.engines.base import SpecError
from gpuward.schemas.manifest import DeploymentSpec

_FLAG: Final = re.compile(r"^[a-z][a-z0-9-]*$")
_NUMBER: Final = re.compile(r"^(\d+(?:\.\d+)?)([kKmMgG]?)$")
# As vLLM reads them: small letters are decimal, capitals binary.
_SUFFIXES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
MAX_FIGURE: Final = 10**9


def flag_of(name: str) -> str:
    """An arg's name as the flag's: `max_model_len` is `max-model-len`."""
    return name.replace("_", "-")


def flags(spec: DeploymentSpec, reserved: Mapping[str, str]) -> list[str]:
    """The args as flags: true a bare flag, false its `--no-` form, a list the flag repeated, null nothing.

    Args:
        spec: of the deployment.
        reserved: flags that are not the user's to set, with what to do instead.

    Raises:
        SpecError: naming the arg.
    """
    argv: list[str] = []
    for name, value in spec.args.items():
        flag = flag_of(name)
        if not _FLAG.match(flag):
            raise SpecError(f"args.{name}: is not a flag's name; write it without dashes in front, such as dtype")
        if flag in reserved:
            raise SpecError(f"args.{name}: is set by Gpuward; {reserved[flag]}")
        if isinstance(value, bool):
            argv.append(f"--{flag}" if value else f"--no-{flag}")
            continue
        for item in value if isinstance(value, list) else [value]:
            if item is None:
                continue
            if isinstance(item, bool | list | dict):
                raise SpecError(f"args.{name}: a list may hold numbers and texts only")
            argv += [f"--{flag}", str(item)]
    return argv


def stated(spec: DeploymentSpec, names: Iterable[str]) -> Any:
    """The value of the first of these flags that is given, None where none is."""
    given = {flag_of(name): value for name, value in spec.args.items()}
    return next((given[name] for name in names if given.get(name) is not None), None)


def figure(spec: DeploymentSpec, *names: str) -> int | None:
    """A whole number above 0 given by the first of these flags, such as 8192 or 8k; None where none is given.

    Raises:
        SpecError: naming the arg that holds something else.
    """
    value = stated(spec, names)
    if value is None:
        return None
    match = _NUMBER.match(str(value))
    found = 0 if match is None or isinstance(value, bool) else int(float(match[1]) * _SUFFIXES[match[2]])
    if not 0 < found <= MAX_FIGURE:
        given = next(name for name in spec.args if flag_of(name) in names and spec.args[name] is not None)
        raise SpecError(f"args.{given}: must be a whole number above 0, such as 8192")
    return found


def text(spec: DeploymentSpec, *names: str) -> str | None:
    """A text given by the first of these flags; None where none is given."""
    value = stated(spec, names)
    return None if value is None else str(value)
