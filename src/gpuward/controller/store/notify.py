"""Wake-ups. One channel; a payload is a kind and ids. A wake-up is never truth: whoever hears it reads the rows.

Kinds: `deployment` (what is wanted changed), `process` (an agent reported; ids are deployments), `worker` (a worker or
its devices changed), `command` (orders wait; ids are workers), `status` (derived state changed, for watchers; ids are
deployments), `lease`.
"""

from collections.abc import Iterable
from typing import Any, Final, Protocol

CHANNEL: Final = "gpuward"
_MAX_PAYLOAD_BYTES: Final = 7_900  # PostgreSQL refuses 8,000


class Executor(Protocol):
    """What `notify` needs of a connection."""

    async def execute(self, query: str, *args: Any) -> Any:
        """Runs one statement."""


async def notify(connection: Executor, kind: str, ids: Iterable[str]) -> None:
    """Sends one NOTIFY with the transaction's commit; too many ids become `*`, everything of that kind."""
    wanted = sorted(set(ids))
    if not wanted:
        return
    payload = " ".join((kind, *wanted))
    if len(payload) > _MAX_PAYLOAD_BYTES:
        payload = f"{kind} *"
    await connection.execute("select pg_notify($1, $2)", CHANNEL, payload)
