"""Notifications on one channel; a payload is a kind and ids. A wake-up, never truth: the receiver reads the rows.

Kinds: `deployment` (a user changed it), `process` (an agent reported; ids are deployments), `worker` (a worker or its
devices changed), `command` (open commands; ids are workers), `status` (derived state changed, for watchers; ids are
deployments), `relocation` (relocations wait or have ended), `scaling` (a user changed a deployment whose replicas
follow the requests, or did so until then), `wake` (a request waits for a sleeping deployment, or none does any more),
`key` (an API key is created or revoked), `secret` (a secret is set, scoped or deleted; ids are names), `policy` (a user
changed a policy), `lease`, `cut` (the database lost commits), `found` (an agent runs what a ledger that lost commits
does not know) and `decided` (the leader has decided on that; ids are workers), `places` (a gateway lacks places in
queues; ids are gateways), `ends` (a gateway had requests in flight at an engine that ended).

One kind says more: `gone` comes before `deployment` when one is deleted. Its id is `uid@seconds`, with the tombstone's
time. A tombstone is never undone, so the deployment's computations end without a read.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

CHANNEL: Final = "gpuward"
GONE: Final = "gone"
PLACES: Final = "places"
ENDS: Final = "ends"
Hints = Mapping[str, Collection[str]]  # ids by kind
MAX_IDS: Final = 1024  # of one kind in one transaction; beyond this all of the kind are read again
_MAX_PAYLOAD_BYTES: Final = 7_900  # PostgreSQL refuses 8,000


class Executor(Protocol):
    """What `notify` needs of a connection."""

    async def execute(self, query: str, *args: Any) -> Any:
        """Runs one statement."""


async def notify(connection: Executor, kind: str, ids: Iterable[str]) -> None:
    """Sends hints at the transaction's commit; more than `MAX_IDS` become `*`, all of that kind."""
    await notify_all(connection, {kind: ids})


async def notify_all(connection: Executor, hints: Mapping[str, Iterable[str]]) -> None:
    """`notify` for several kinds in one round trip."""
    if sent := payloads(hints):
        await connection.execute("select pg_notify($1, payload) from unnest($2::text[]) payload", CHANNEL, sent)


def payloads(hints: Mapping[str, Iterable[str]]) -> list[str]:
    """The payloads of these hints, for a statement that sends them along with its writes."""
    return [payload for kind, ids in hints.items() for payload in _payloads(kind, sorted(set(ids)))]


def parse_gone(hint: str) -> tuple[str, datetime] | None:
    """The deployment's uid and the time of its tombstone in a `gone` hint; None if malformed."""
    uid, _, seconds = hint.partition("@")
    try:
        return uid, datetime.fromtimestamp(float(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _payloads(kind: str, ids: Sequence[str]) -> Iterator[str]:
    """As few as hold all ids, so that nothing is read again that has not changed."""
    sizes = [1 + len(id_.encode()) for id_ in ids]
    if len(ids) > MAX_IDS or any(len(kind) + size > _MAX_PAYLOAD_BYTES for size in sizes):
        yield f"{kind} *"
        return
    words, total = [kind], len(kind)
    for id_, size in zip(ids, sizes, strict=True):
        if total + size > _MAX_PAYLOAD_BYTES:
            yield " ".join(words)
            words, total = [kind], len(kind)
        words.append(id_)
        total += size
    if ids:
        yield " ".join(words)
