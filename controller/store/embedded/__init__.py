"""The embedded PostgreSQL: the default database, installed from a wheel and supervised by the controller.

`server` starts, watches and stops it; `prepare` creates its folders and its cluster; `layout` has the paths in the data
folder; `config` writes PostgreSQL's settings; `accounts` chooses its operating-system account; `installation` finds its
binaries; `processes` and `launch` start programs that end with their controller.
"""

from controller.store.embedded.installation import EmbeddedPostgresError
from controller.store.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
