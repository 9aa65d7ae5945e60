"""The entry point of `gpuward`. It checks that the packages are Gpuward's own before it imports any of them."""

import gc
import os
import sys
from typing import Final

from cli.own_packages import shadowed_package

_INTERRUPTED: Final = 130
_RARELY: Final = (50_000, 20, 20)  # imports make hardly any garbage; daemons set their own thresholds once they run


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
    shadowed = shadowed_package()
    if shadowed is not None:
        print(shadowed, file=sys.stderr)
        raise SystemExit(1)
    if "_GPUWARD_COMPLETE" in os.environ:
        from cli.completion.complete import complete  # noqa: PLC0415 - few calls need it

        code = complete(os.environ)
        if code is not None:
            raise SystemExit(code)
    from cli.app import app  # noqa: PLC0415 - it imports the packages, so the check comes first

    app(prog_name="gpuward")
