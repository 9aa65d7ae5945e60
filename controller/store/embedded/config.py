"""Configuration of the embedded PostgreSQL: durable, reachable by its socket alone, modest in resources."""

from collections.abc import Iterable, Mapping

from controller.store.embedded.accounts import Account
from controller.store.embedded.layout import PORT, ROLE, Layout

_PAGE_BYTES = 8192
_SHARED_BUFFERS_BYTES = 128 * 1024 * 1024


def write_config(layout: Layout, readers: Iterable[Account], extra_settings: Mapping[str, str]) -> None:
    """Writes the server's three configuration files.

    Args:
        layout: where to write them.
        readers: accounts that may connect, all as the same database role.
        extra_settings: PostgreSQL parameters that override these.
    """
    settings = _settings(layout) | dict(extra_settings)
    names = dict.fromkeys(account.name for account in readers)
    files = {
        "postgresql.conf": "".join(f"{name} = {_quoted(value)}\n" for name, value in settings.items()),
        "pg_hba.conf": "local all all peer map=gpuward\n",
        "pg_ident.conf": "".join(f'gpuward "{name}" {ROLE}\n' for name in names),
    }
    for name, text in files.items():
        path = layout.config / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)


def _settings(layout: Layout) -> dict[str, str]:
    return {
        "data_directory": str(layout.cluster),
        "hba_file": str(layout.config / "pg_hba.conf"),
        "cluster_name": layout.cluster_name,
        "ident_file": str(layout.config / "pg_ident.conf"),
        # Reachable by the socket alone, for its folder's owner and root alone.
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": _quoted_list_item(str(layout.sockets)),
        "unix_socket_permissions": "0700",
        # Durable: commits survive any crash, including the machine's.
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        # It shares the controller's host: modest memory, and no unneeded processes.
        "max_connections": "100",
        "shared_buffers": str(_SHARED_BUFFERS_BYTES // _PAGE_BYTES),
        "max_wal_size": "512MB",
        "io_method": "sync",
        "max_logical_replication_workers": "0",
        # One file for each weekday, truncated after a week.
        "logging_collector": "on",
        "log_directory": str(layout.logs),
        "log_filename": "postgres-%a.log",
        "log_rotation_age": "1d",
        "log_rotation_size": "0",
        "log_truncate_on_rotation": "on",
        "log_file_mode": "0600",
        "log_line_prefix": "%m [%p] %u@%d ",
        "log_checkpoints": "off",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def _quoted_list_item(value: str) -> str:
    # A list of folders is split at commas unless each is quoted again.
    return '"' + value.replace('"', '""') + '"'
