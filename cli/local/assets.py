"""The verb `assets`: writes the files for operators that the installation carries. It needs no controller."""

import os
from pathlib import Path
from typing import Annotated, Final

import typer

import cli
from cli.errors import CliError, RefusedError
from cli.local.asset_files import asset_files
from cli.runner import complaining
from schemas.printing import block

app = typer.Typer()
_PACKAGE: Final = Path(cli.__file__).resolve().parent
_PROGRAM: Final = 0o755
_FILE: Final = 0o644


@app.command()
def assets(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files. Made where it is missing.")],
    force: Annotated[bool, typer.Option("--force", help="Replace files that have another content.")] = False,
) -> None:
    """Write the files for operators: units, rules, boards, Compose, Kubernetes.

    They are the systemd units, `install-agent.sh`, the rules of Prometheus, the boards of Grafana, the Compose file,
    and the base and the Helm chart for Kubernetes, in this version. Prints each file that it writes. A file that has
    the same content stays.
    """
    with complaining():
        carried = _carried()
        try:
            missing = {folder / name: source for name, source in carried.items() if not _has(folder / name, source)}
            blocked = sorted({str(found) for path in missing if (found := _blocks(folder, path)) is not None})
            if blocked:
                raise RefusedError(
                    f"{', '.join(blocked)}: a folder, a file or a link in the place of another kind, and nothing was "
                    "written; remove it, or name another folder"
                )
            changed = sorted(str(path) for path in missing if os.path.lexists(path))
            if changed and not force:
                raise RefusedError(
                    f"{', '.join(changed)}: has another content, and nothing was written; "
                    "name another folder, or replace all of them by --force"
                )
            for path, source in missing.items():
                _write(path, source)
                print(block(str(path)))
        except OSError as error:
            raise CliError(f"{error.filename or folder}: {error.strerror or error}") from error


def _carried() -> dict[str, Path]:
    """The file of each asset: in the installed package, else in the sources."""
    packed = _PACKAGE / "assets"
    found = {file.relative_to(packed).as_posix(): file for file in sorted(packed.rglob("*")) if file.is_file()}
    if not found:
        found = asset_files(_PACKAGE.parent)
    if not found:
        raise CliError(f"{packed} does not exist: the installation is incomplete; repeat it")
    return found


def _has(path: Path, source: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes() == source.read_bytes()


def _blocks(folder: Path, path: Path) -> Path | None:
    """What is in the place of the file or of a folder above it, and is not to be replaced or followed."""
    if path.is_dir() and not path.is_symlink():
        return path
    above = (folder / parent for parent in path.relative_to(folder).parents[:-1])
    return next((one for one in above if os.path.lexists(one) and (one.is_symlink() or not one.is_dir())), None)


def _write(path: Path, source: Path) -> None:
    """Replaces the file at once, so that a link in its place is not followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    mode = _PROGRAM if path.suffix == ".sh" else _FILE
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(source.read_bytes())
    draft.replace(path)
