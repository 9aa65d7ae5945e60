"""The entry point of `gpuward`. It checks that the packages are Gpuward's own before it imports any of them."""

import os
import sys
from io import TextIOWrapper

from cli.package_check import foreign_packages


def escape_what_the_terminal_cannot_show() -> None:
    """Lets names in characters that the locale's encoding lacks be printed escaped, where they would end the call."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """Runs the command line; ends the process with its exit code."""
    escape_what_the_terminal_cannot_show()
    foreign = foreign_packages()
    if foreign:
        print("\n".join(foreign), file=sys.stderr)
        raise SystemExit(1)
    if "_GPUWARD_COMPLETE" in os.environ:
        from cli.completion.complete import complete  # noqa: PLC0415 - few calls are asked for it

        code = complete(os.environ)
        if code is not None:
            raise SystemExit(code)
    from cli.app import app  # noqa: PLC0415 - it imports the packages, so the check comes first

    app(prog_name="gpuward")
