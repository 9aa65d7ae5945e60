"""The entry point of `gpuward`. It checks that the packages are Gpuward's own before it imports any of them."""

import gc
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_INTERRUPTED: Final = 130
_RARELY: Final = (50_000, 20, 20)  # imports make hardly any garbage; daemons set their own thresholds once they run
_PACKAGES: Final = ("agent", "controller", "http1", "schemas")  # plain names, which other projects may use, too
_HOME: Final = Path(__file__).resolve().parents[1]


def main() -> None:
    """Runs the command line; ends the process with its exit code."""
    gc.set_threshold(*_RARELY)
    try:
        from cli.terminal.streams import open_streams  # noqa: PLC0415 - Ctrl-C may come early

        open_streams()
        try:
            _call()
        finally:
            sys.stdout.flush()  # the interpreter would print a traceback where it fails
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


def _call() -> None:
    foreign = _foreign_packages()
    if foreign:
        print("\n".join(foreign), file=sys.stderr)
        raise SystemExit(1)
    if "_GPUWARD_COMPLETE" in os.environ:
        from cli.completion.complete import complete  # noqa: PLC0415 - few calls need it

        code = complete(os.environ)
        if code is not None:
            raise SystemExit(code)
    from cli.app import app  # noqa: PLC0415 - it imports the packages, so the check comes first

    app(prog_name="gpuward")


def _foreign_packages() -> list[str]:
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
