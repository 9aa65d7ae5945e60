"""Checks that `agent`, `controller` and `schemas` are Gpuward's own. Other projects may use such plain names too."""

from importlib.util import find_spec
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("agent", "controller", "http1", "schemas")
_HOME: Final = Path(__file__).resolve().parents[1]


def foreign_packages() -> list[str]:
    """One message for each package that Python would import from elsewhere."""
    lines = []
    for name in _PACKAGES:
        spec = find_spec(name)
        folders = [Path(folder).resolve() for folder in (spec.submodule_search_locations or ())] if spec else []
        if folders != [_HOME / name]:
            where = ", ".join(map(str, folders)) or (spec and spec.origin) or "nowhere"
            lines.append(
                f"gpuward: the package {name!r} is found in {where} instead of {_HOME / name}:"
                " remove that folder from PYTHONPATH, or install Gpuward into its own environment"
            )
    return lines
