"""Checks that `agent`, `controller` and `schemas` are Gpuward's own: names so plain may exist elsewhere on the path."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("agent", "controller", "schemas")
_HOME: Final = Path(__file__).resolve().parents[1]


def foreign_packages() -> list[str]:
    """One line for each of our packages that Python would import from elsewhere: what is wrong, and what to do."""
    lines = []
    for name in _PACKAGES:
        spec = find_spec(name)
        folders = [Path(folder).resolve() for folder in (spec.submodule_search_locations or ())] if spec else []
        if folders != [_HOME / name]:
            where = ", ".join(map(str, folders)) or (spec and spec.origin) or "nowhere"
            lines.append(
                f"gpuward: the package {name!r} is found in {where} instead of {_HOME / name}:"
                " take that folder out of PYTHONPATH, or install Gpuward into an environment of its own"
            )
    return lines
