"""Workers' sessions: the owner of a credential, and the host as a hello and an inventory report it."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import structlog
from msgspec import to_builtins

from controller.domain.workers import HELLOS_KEPT, TWO_IDENTITIES, PastHello, Quarantine
from controller.store.access.proxy_secrets import (
    JOIN_PROXY_SECRET,
    PROXY_SECRET,
    PURPOSE,
    stored_proxy_secret,
    write_proxy_secret,
)
from controller.store.access.receipt_key import JOIN_RECEIPT_KEY, RECEIPT_KEY, opened_receipt_key
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Connection
from controller.store.core.guards import UNSETTLED
from controller.store.workers.credentials import new_proxy_secret
from controller.store.workers.stated import read_stated
from schemas.wire import Hello, Inventory
from schemas.worker_labels import with_agent_labels, with_stated_labels

log = structlog.get_logger(__name__)

ALIVE_WITHIN_S: Final = 15.0  # since the last message: an older connection counts as gone
_OWNERS: Final = "select id, name, deleted_at, session from workers"
# Each by an index, however many there are.
_BY_CREDENTIAL: Final = f"""
    select c.given, w.*, l.term, {RECEIPT_KEY}
      from unnest($1::bytea[]) as c(given)
     cross join lateral ({_OWNERS} where credential_hash = c.given
                         union {_OWNERS} where next_credential_hash = c.given) w
      join lease l on l.id = 1 {JOIN_RECEIPT_KEY}"""  # noqa: S608 - constants
_BEFORE: Final = f"""
    select l.cut_at, l.unsettled, {RECEIPT_KEY}, w.session,
           exists (select 1 from found_processes f where f.worker_id = w.id) as has_orphans,
           exists (select 1 from unread_receipts u where u.worker_id = w.id) as has_unread,
           w.boot_id, w.highest_term, w.recent_hellos, w.quarantine_reason, clock_timestamp() as at,
           w.quarantined_until > clock_timestamp() as quarantined, w.quarantined_until,
           exists (select 1 from worker_liveness l
                    where l.worker_id = w.id and l.session = w.session and l.connected and not l.clean
                      and l.last_seen > clock_timestamp() - $2 * interval '1 second') as alive
      from workers w
     cross join (select id, cut_at, receipt_key, {UNSETTLED} as unsettled from lease where id = 1) l
     {JOIN_RECEIPT_KEY}
     where w.id = $1 and w.deleted_at is null for no key update of w"""  # noqa: S608 - a constant
# A hello that is held back changes only the number: it may come from another host than the stored one.
_HELLO: Final = """
    update workers w
       set session = greatest(w.session, $12::bigint) + 1,
           recent_hellos = $7, quarantined_until = $8, quarantine_reason = $9,
           boot_id = case when $10 then boot_id else $2 end,
           agent_version = case when $10 then agent_version else $3 end,
           highest_term = case when $10 then highest_term else $4 end,
           proxy_address = case when $10 then proxy_address else $5 end,
           protocol = case when $10 then protocol else $6 end,
           proxy_certificate = case when $10 then proxy_certificate else $11 end,
           unproven = unproven and not $13,
           reported_at = case when $10 then reported_at else clock_timestamp() end
     where w.id = $1
    returning w.session, clock_timestamp() as at, (select term from lease where id = 1) as term"""
# The agent's first connection with the next credential makes that the worker's; the earlier one is void from then on.
_TAKE_NEXT: Final = """
    update workers
       set credential_hash = next_credential_hash, next_credential_hash = null, credential_since = clock_timestamp(),
           next_proxy_secret = null,
           proxy_secret = case when next_proxy_secret is not null then next_proxy_secret
                               when not exists (select from sealed_proxy_secrets s
                                                 where s.worker_id = $1 and s.next_sealed is not null) then proxy_secret
                               end
     where id = $1 and next_credential_hash = $2
    returning true"""
_TAKE_NEXT_SEALED: Final = """
    update sealed_proxy_secrets
       set sealed = coalesce(next_sealed, sealed), key_id = coalesce(next_key_id, key_id),
           next_sealed = null, next_key_id = null
     where worker_id = $1"""
_READ_PROXYS: Final = f"select {PROXY_SECRET} from workers w {JOIN_PROXY_SECRET} where w.id = $1"  # noqa: S608 - constants
_UNREAD: Final = "insert into unread_receipts (worker_id) values ($1) on conflict do nothing"
_READ_ALL: Final = "delete from unread_receipts where worker_id = $1"
_CONNECTED: Final = """
    insert into worker_liveness (worker_id, session, connected, last_seen) values ($1, $2, true, clock_timestamp())
        on conflict (worker_id) do update
       set session = excluded.session, connected = true, clean = false, last_seen = excluded.last_seen"""
_HOST: Final = """
    update workers
       set hostname = $2, os = $3, arch = $4, driver = $5, simulated = $6, labels = $7, gpus_known = $8, engines = $9,
           runtimes = $10, reported_at = clock_timestamp()
     where id = $1"""
_GPUS_KNOWN: Final = "update workers set gpus_known = $2 where id = $1 and gpus_known <> $2"


class WorkerGoneError(Exception):
    """The worker was deleted in the meantime."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The worker that a credential belongs to."""

    id: str
    name: str
    deleted: bool
    credential_hash: bytes = b""  # the hash of the credential that was given
    session: int = 0  # its newest hello's
    term: int = 0  # the lease's
    # The ledger's key for proofs of what agents have received; None: no key of this controller opens it.
    proof_key: bytes | None = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class NewSession:
    """A hello's session."""

    session: int
    term: int
    at: datetime  # the hello's time, by the database's clock
    rebooted: bool
    term_ahead: bool  # the agent has received a later term than the leader's
    proxy_secret: str  # for requests to the agent's proxy from now on
    # Another agent with this credential was connected a moment ago, or the worker is quarantined for that: no report of
    # this agent is believed, and it gets no command.
    held: bool = False
    quarantine: Quarantine | None = None
    newly: bool = False  # quarantined by this hello
    # The ledger lost commits and this worker has not reported its processes since: those with a receipt may be lost.
    reports_first: bool = False
    has_orphans: bool = False  # orphans that it reported are recorded already
    has_unread: bool = False  # its receipts could not be read when they counted
    receipt_key: bytes | None = b""  # opens receipts; None: no key of this controller opens it
    before: int = 0  # number of the worker's session before this one

    @property
    def lost_some(self) -> bool:
        """Whether the ledger may have lost the processes in this hello, so that their receipts decide."""
        return self.reports_first or self.has_unread

    def follows(self, identity: Identity) -> bool:
        """Whether no other hello was written since the sender was identified."""
        return self.before == identity.session


async def find_by_credentials(
    connection: Connection, hashes: Collection[bytes], keys: SecretKeys = NO_KEYS
) -> dict[bytes, Identity]:
    """Returns the workers, deleted or not, by the SHA-256 of their present or next credential; unknown are absent."""
    rows = await connection.fetch(_BY_CREDENTIAL, list(hashes))
    proof_key = await opened_receipt_key(rows[0], keys) if rows else None  # the same in all
    return {
        row["given"]: Identity(
            str(row["id"]), row["name"], row["deleted_at"] is not None, row["given"], row["session"], row["term"],
            proof_key,
        )
        for row in rows
    }  # fmt: skip


async def begin_session(
    connection: Connection,
    worker_id: str,
    hello: Hello,
    proxy_address: str,
    *,
    identity: str,
    place: str,
    judge: Callable[[Sequence[PastHello]], Quarantine | None],
    credential_hash: bytes = b"",
    proven: bool = False,
    keys: SecretKeys = NO_KEYS,
) -> NewSession:
    """Raises the session number and locks the worker's row: no older connection can write from here on.

    `write_connected` comes last in the transaction. The number is above the agent's last one, which a ledger that lost
    commits may not know.

    `identity` distinguishes two agents with one credential. `place`: where an operator finds the agent. `judge` decides
    on a quarantine. `proven`: the agent has shown a proof of what it received; from now on it needs a proof.

    Raises:
        WorkerGoneError: the worker is deleted.
    """
    before = await connection.fetchrow(_BEFORE, worker_id, ALIVE_WITHIN_S)
    if before is None:
        raise WorkerGoneError(worker_id)
    hellos = [PastHello(datetime.fromisoformat(h["at"]), h["identity"], h["address"]) for h in before["recent_hellos"]]
    new = PastHello(before["at"], identity, place)
    duplicate = bool(before["alive"]) and bool(hellos) and hellos[-1].identity != new.identity
    hellos = [*hellos, new][-HELLOS_KEPT:]
    quarantine = judge(hellos) or _present(before, hellos)
    held = duplicate or (quarantine is not None and quarantine.reason == TWO_IDENTITIES)
    row = await connection.fetchrow(
        _HELLO, worker_id, hello.boot_id, hello.agent_version, hello.highest_term, proxy_address, hello.protocol,
        [{"at": h.at.isoformat(), "identity": h.identity, "address": h.address} for h in hellos],
        quarantine and quarantine.until, quarantine.reason if quarantine else "", held, hello.certificate,
        hello.highest_session, proven,
    )  # fmt: skip
    if not held and await connection.fetchval(_TAKE_NEXT, worker_id, credential_hash):
        await connection.execute(_TAKE_NEXT_SEALED, worker_id)
    return NewSession(
        row["session"],
        row["term"],
        row["at"],
        rebooted=not held and before["boot_id"] not in ("", hello.boot_id),
        term_ahead=not held and hello.highest_term > max(row["term"], before["highest_term"]),
        proxy_secret=await _proxy_secret(connection, worker_id, keys, held=held),
        held=held,
        quarantine=quarantine,
        newly=quarantine is not None and not before["quarantined"],
        reports_first=before["unsettled"]
        or (before["cut_at"] is not None and (not hellos[:-1] or hellos[-2].at < before["cut_at"])),
        has_orphans=before["has_orphans"],
        has_unread=before["has_unread"],
        receipt_key=await opened_receipt_key(before, keys),
        before=before["session"],
    )


async def _proxy_secret(connection: Connection, worker_id: str, keys: SecretKeys, *, held: bool) -> str:
    """The worker's secret, or a new one where no key here opens it. Its agent accepts the secret of this hello.

    `held`: the agent is not believed, so nothing is stored.
    """
    stored = stored_proxy_secret(await connection.fetchrow(_READ_PROXYS, worker_id))
    keys = keys.branch(PURPOSE)
    await keys.learn((stored.key_id,))
    secret = stored.opened(keys)
    if secret is None:
        secret = new_proxy_secret()
        if not held:
            log.warning("the secret of an agent's proxy could not be opened, and is replaced", worker=worker_id)
            await write_proxy_secret(connection, worker_id, secret, keys)
    return secret


async def note_unread(connection: Connection, worker_id: str, *, unread: bool) -> None:
    """Records whether receipts of this worker are still to be read."""
    await connection.execute(_UNREAD if unread else _READ_ALL, worker_id)


async def write_connected(connection: Connection, worker_id: str, session: int) -> None:
    """Marks the session as connected. Last statement of a hello, since liveness of all workers waits for this row."""
    await connection.execute(_CONNECTED, worker_id, session)


def _present(before: Any, hellos: Sequence[PastHello]) -> Quarantine | None:
    """A quarantine by an earlier hello that lasts yet."""
    if not before["quarantined"]:
        return None
    addresses = tuple(dict.fromkeys(hello.address for hello in hellos))
    return Quarantine(before["quarantine_reason"], before["quarantined_until"], addresses)


async def write_host(
    connection: Connection, worker_id: str, inventory: Inventory, *, gpus_known: bool, trusted: Sequence[str]
) -> None:
    """Stores the host's state from a full report. The worker's row must be locked, so that `Stated` does not change."""
    host, stated = inventory.host, await read_stated(connection, worker_id)
    # The agent's own labels are derived again, for agents that send no labels or a user's instead.
    labels = with_stated_labels(with_agent_labels(host, inventory.gpus), stated.labels, trusted)
    await connection.execute(
        _HOST, worker_id, host.hostname, host.os, host.arch, host.driver, host.simulated, labels, gpus_known,
        None if host.engines is None else list(host.engines),
        [to_builtins(runtime) for runtime in host.runtimes],
    )  # fmt: skip


async def write_gpus_known(connection: Connection, worker_id: str, *, gpus_known: bool) -> None:
    """Stores whether the GPUs could be read, if that changed."""
    await connection.execute(_GPUS_KNOWN, worker_id, gpus_known)
