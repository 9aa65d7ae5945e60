"""The entry point of `gpuward`. It makes sure that the packages are Gpuward's own before any of them is imported."""

import sys

from cli.packages import foreign_packages


def main() -> None:
    """Runs the command line; ends the process with its exit code."""
    foreign = foreign_packages()
    if foreign:
        print("\n".join(foreign), file=sys.stderr)
        raise SystemExit(1)
    from cli.app import app  # noqa: PLC0415 - not before the check: it imports the packages

    app(prog_name="gpuward")
