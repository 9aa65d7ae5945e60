"""Wake-ups. One channel; a payload is a kind and ids. A wake-up is never truth: whoever hears it reads the rows.

Kinds: `deployment` (what is wanted changed), `process` (an agent reported; ids are deployments), `worker` (a worker or
its devices changed), `command` (orders wait; ids are workers), `status` (derived state changed, for watchers; ids are
deployments), `relocation` (moves wait, or have ended), `lease`.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Protocol

CHANNEL: Final = "gpuward"
Hints = Mapping[str, Collection[str]]  # ids by kind
_MAX_PAYLOAD_BYTES: Final = 7_900  # PostgreSQL refuses 8,000


class Executor(Protocol):
    """What `notify` needs of a connection."""

    async def execute(self, query: str, *args: Any) -> Any:
        """Runs one statement."""


async def notify(connection: Executor, kind: str, ids: Iterable[str]) -> None:
    """Sends one NOTIFY with the transaction's commit; too many ids become `*`, everything of that kind."""
    await notify_all(connection, {kind: ids})


async def notify_all(connection: Executor, hints: Mapping[str, Iterable[str]]) -> None:
    """`notify` for several kinds in one round trip."""
    if sent := payloads(hints):
        await connection.execute("select pg_notify($1, payload) from unnest($2::text[]) payload", CHANNEL, sent)


def payloads(hints: Mapping[str, Iterable[str]]) -> list[str]:
    """What to send for these hints, for a statement that does so along with its writes."""
    return [_payload(kind, wanted) for kind, ids in hints.items() if (wanted := sorted(set(ids)))]


def _payload(kind: str, ids: list[str]) -> str:
    payload = " ".join((kind, *ids))
    return payload if len(payload) <= _MAX_PAYLOAD_BYTES else f"{kind} *"
