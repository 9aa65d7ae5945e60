"""Whether Gpuward's packages are its own. Their names are plain, so other distributions may have packages of that name.

It imports the standard library alone, and `gpuward.py` loads it by its path where another package `cli` is in front.
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGES: Final = ("agent", "cli", "controller", "gateway", "http1", "schemas")
MARK: Final = b"Gpuward"  # in the docstring of each of these packages
_HOME: Final = Path(__file__).resolve().parents[1]
_OWN_ENVIRONMENT: Final = "install Gpuward into an environment of its own, such as by `pipx` or `uv tool install`"


def shadowed_package() -> str | None:
    """One sentence on the first package that Python would import from elsewhere; None if all are Gpuward's own."""
    return next((found for name in PACKAGES if (found := _shadowed(name)) is not None), None)


def _shadowed(name: str) -> str | None:
    own = _HOME / name / "__init__.py"
    spec = find_spec(name)
    file = spec.origin if spec else None
    if spec is not None and file is None and own.is_file():  # only an editable installation comes after such a folder
        folder = next(iter(spec.submodule_search_locations or ()), str(own.parent))
        return f"gpuward: its package {name!r} is shadowed by the folder {folder}: {_remedy(f'{folder}/__init__.py')}"
    if file is None:
        return f"gpuward: its package {name!r} has lost {own}: {_OWN_ENVIRONMENT}"
    if not _same(file, own):
        return f"gpuward: its package {name!r} is shadowed by {file}{_owner(file)}: {_remedy(file)}"
    if MARK not in own.read_bytes():  # a distribution that was installed later has overwritten it
        return f"gpuward: its package {name!r} is overwritten by {file}{_owner(file)}: {_OWN_ENVIRONMENT}"
    return None


def _same(file: str, own: Path) -> bool:
    return file == str(own) or Path(file).resolve() == own


def _remedy(file: str) -> str:
    root = Path(file).parent if Path(file).name != "__init__.py" else Path(file).parents[1]
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if any(Path(entry).resolve() == root.resolve() for entry in given):
        return f"remove {root} from PYTHONPATH"
    return _OWN_ENVIRONMENT


def _owner(file: str) -> str:
    """The other distributions that have this file, in words."""
    from importlib.metadata import distributions  # noqa: PLC0415 - slow, and only errors need it

    site = next((Path(entry) for entry in sys.path if entry and Path(file).is_relative_to(entry)), None)
    if site is None:
        return ""
    path = Path(file).relative_to(site).as_posix()
    owners = {
        f"{one.metadata['Name']} {one.version}"
        for one in distributions(path=[str(site)])
        if one.metadata["Name"] != "gpuward" and any(path == listed.as_posix() for listed in one.files or ())
    }
    return f" of the distribution {', '.join(sorted(owners))}" if owners else ""
