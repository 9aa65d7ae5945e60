"""The entry point of `gpuward`. It checks that the packages are Gpuward's own before it imports any of them."""

import os
import sys

_INTERRUPTED = 130


def main() -> None:
    """Runs the command line; ends the process with its exit code."""
    try:
        from cli.terminal.streams import open_streams  # noqa: PLC0415 - Ctrl-C may come early

        open_streams()
        try:
            _call()
        finally:
            sys.stdout.flush()  # the interpreter would tell a failure as a traceback
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None


def _call() -> None:
    from cli.package_check import foreign_packages  # noqa: PLC0415 - as above

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
