"""The embedded PostgreSQL: the default database, brought by a wheel and supervised by the controller itself.

`server` starts, watches and stops it, after `prepare` has made ready what it needs; `layout` says where everything lies
in the data folder; `config` what PostgreSQL is told; `accounts` decides who it runs as; `installation` finds its
binaries; `processes` and `launch` start programs that die with their controller.
"""

from controller.store.embedded.errors import EmbeddedPostgresError
from controller.store.embedded.server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres", "EmbeddedPostgresError"]
