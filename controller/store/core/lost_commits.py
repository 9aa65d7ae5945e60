"""What the lease row says of a loss of commits, as fragments of SQL."""

from typing import Final

# Agents have yet to tell what runs: a loss was noticed and is not settled, or is about to be by the next leader.
UNSETTLED: Final = (
    "(cut_at is not null and coalesce(settled_at < cut_at, true) or coalesce(timeline <> database_timeline(), false))"
)
