"""The program `gpuward`. Its name is Gpuward's alone, so it starts where another package `cli` is in front."""

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Final

_CLI: Final = Path(__file__).resolve().parent / "cli"


def main() -> None:
    """Runs the command line; ends the process with its exit code."""
    _check_cli()
    from cli.main import main as run  # noqa: PLC0415 - it may be another project's

    run()


def _check_cli() -> None:
    """Ends the process where the package `cli` is not Gpuward's. The command line checks the other packages."""
    spec = find_spec("cli")
    file = Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None
    if file == _CLI / "__init__.py" and b"Gpuward" in file.read_bytes():
        return
    source = _CLI / "own_packages.py"
    check = spec_from_file_location("own_packages", source) if source.is_file() else None
    if check is None or check.loader is None:
        raise SystemExit("gpuward: the installation is incomplete; repeat it")
    own_packages = module_from_spec(check)
    check.loader.exec_module(own_packages)
    print(own_packages.shadowed_package(), file=sys.stderr)
    raise SystemExit(1)


if __name__ == "__main__":
    main()
