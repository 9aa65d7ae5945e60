"""Paths of the embedded PostgreSQL inside the data folder.

Everything is below `DATA_DIR/postgres`. Files that root writes and PostgreSQL reads (configuration, copied binaries)
are in folders of the controller's user; files that PostgreSQL writes are in folders of its own account. The controller
never writes into the latter, so the database's account cannot redirect root's writes by a link.
"""

import fcntl
import hashlib
import os
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from controller.store.embedded.installation import MAJOR, EmbeddedPostgresError

ROLE = "gpuward"
DATABASE = "gpuward"
PORT = 5432
"""Part of the socket's file name only: nothing listens on TCP."""
_SOCKET_PATH_LIMIT = 107  # most bytes of a socket's path


@dataclass(frozen=True)
class Layout:
    """The paths below a data folder, which must be absolute and free of links."""

    data_dir: Path

    @property
    def home(self) -> Path:
        """The folder of all others."""
        return self.data_dir / "postgres"

    @property
    def cluster(self) -> Path:
        """PostgreSQL's own data folder."""
        return self.home / "cluster"

    @property
    def cluster_name(self) -> str:
        """Part of the titles of the server's processes, which distinguishes them from other servers'."""
        return f"gpuward-{hashlib.sha256(os.fsencode(self.cluster)).hexdigest()[:12]}"

    @property
    def draft_cluster(self) -> Path:
        """A cluster that is being created; renamed to `cluster` once it is complete."""
        return self.home / "cluster-draft"

    @property
    def config(self) -> Path:
        """The configuration files, rewritten at every start."""
        return self.home / "config"

    @property
    def sockets(self) -> Path:
        """The folder of the only socket that the server listens on."""
        return self.home / "run"

    @property
    def logs(self) -> Path:
        """The server's own logs: one file for each weekday, overwritten after a week."""
        return self.home / "log"

    @property
    def startup_log(self) -> Path:
        """Output of the latest start before the logs were open."""
        return self.home / "startup.log"

    @property
    def lock_file(self) -> Path:
        """Locked by the controller that uses this folder."""
        return self.home / "lock"

    def url(self, scheme: str) -> str:
        """The database's address for a client of the given scheme, such as `postgresql`."""
        query = urllib.parse.urlencode({"host": str(self.sockets), "port": PORT})
        return f"{scheme}://{ROLE}@/{DATABASE}?{query}"

    def check_socket_path(self) -> None:
        """Refuses a data folder whose path is too long.

        Raises:
            EmbeddedPostgresError: the socket's path would exceed the kernel's limit.
        """
        length = len(os.fsencode(self.sockets / f".s.PGSQL.{PORT}"))
        if length > _SOCKET_PATH_LIMIT:
            raise EmbeddedPostgresError(
                f"the data folder {self.data_dir} has too long a path: the database's socket in it would take "
                f"{length} bytes where the system allows {_SOCKET_PATH_LIMIT}; choose a path shorter by "
                f"{length - _SOCKET_PATH_LIMIT} by --data-dir",
            )

    def has_cluster(self) -> bool:
        """Whether a complete cluster exists.

        Raises:
            EmbeddedPostgresError: it is of another major version, or not a cluster.
        """
        if not self.cluster.exists():
            return False
        try:
            version = (self.cluster / "PG_VERSION").read_text(encoding="ascii").strip()
        except FileNotFoundError as error:
            raise EmbeddedPostgresError(
                f"{self.cluster} is not a PostgreSQL cluster: move it away, or choose another folder by --data-dir",
            ) from error
        if version != MAJOR:
            raise EmbeddedPostgresError(
                f"{self.cluster} was created by PostgreSQL {version}, this gpuward uses {MAJOR}: dump it "
                f"with the gpuward that created it, convert it with pg_upgrade, or choose another folder by --data-dir",
            )
        return True

    def take_lock(self) -> int:
        """Locks the data folder for this process; returns the open file that holds the lock.

        The kernel releases the lock when the process ends, however it ends.

        Raises:
            EmbeddedPostgresError: another controller holds it.
        """
        descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "another process"
            os.close(descriptor)
            raise EmbeddedPostgresError(
                f"the data folder {self.data_dir} is in use by process {holder}: stop that controller first, "
                "or choose another folder by --data-dir",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return descriptor

    def startup_messages(self) -> str:
        """The last lines that the server logged, for an error message."""
        newest = max(self.logs.glob("*.log"), key=lambda path: path.lstat().st_mtime, default=None)
        lines = [line for path in (self.startup_log, newest) if path is not None for line in _tail(path)]
        return "; ".join(lines) or f"it wrote nothing (see {self.logs})"


def _tail(path: Path, lines: int = 4) -> list[str]:
    try:
        # The server's account owns the folder: links that it may have put there are not followed.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, os.fstat(descriptor).st_size - 4096))
        text = file.read().decode("utf-8", "replace")
    return text.splitlines()[-lines:]
