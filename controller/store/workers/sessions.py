"""Workers' sessions: the owner of a credential, and what a hello and an inventory report of the host."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from controller.store.core.database import Connection
from schemas.wire import Hello, Inventory
from schemas.worker_labels import with_agent_labels

_BY_CREDENTIAL: Final = "select id, name, proxy_secret, deleted_at from workers where credential_hash = $1"
_HELLO: Final = """
    update workers w
       set session = w.session + 1, boot_id = $2, agent_version = $3, highest_term = $4, proxy_address = $5,
           protocol = $6, reported_at = clock_timestamp()
      from (select id, boot_id, highest_term from workers where id = $1 and deleted_at is null for no key update) before
     where w.id = before.id
    returning w.session, before.boot_id as boot_before, before.highest_term as term_before,
              clock_timestamp() as at,
              (select term from lease where id = 1) as term"""
_CONNECTED: Final = """
    insert into worker_liveness (worker_id, session, connected, last_seen) values ($1, $2, true, clock_timestamp())
        on conflict (worker_id) do update
       set session = excluded.session, connected = true, clean = false, last_seen = excluded.last_seen"""
_HOST: Final = """
    update workers
       set hostname = $2, os = $3, arch = $4, driver = $5, simulated = $6, labels = $7, gpus_known = $8, engines = $9,
           reported_at = clock_timestamp()
     where id = $1"""
_GPUS_KNOWN: Final = "update workers set gpus_known = $2 where id = $1 and gpus_known <> $2"


class WorkerGoneError(Exception):
    """The worker was deleted in the meantime."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The worker that a credential belongs to."""

    id: str
    name: str
    proxy_secret: str
    deleted: bool


@dataclass(frozen=True, slots=True)
class NewSession:
    """A hello's session. `at` is the database's time of the hello."""

    session: int
    term: int
    at: datetime
    rebooted: bool
    term_ahead: bool  # the agent has now seen a later term than the leader's


async def find_by_credential(connection: Connection, credential_hash: bytes) -> Identity | None:
    """The worker, deleted or not, whose credential has this SHA-256; None if it is unknown."""
    row = await connection.fetchrow(_BY_CREDENTIAL, credential_hash)
    if row is None:
        return None
    return Identity(str(row["id"]), row["name"], row["proxy_secret"], row["deleted_at"] is not None)


async def begin_session(connection: Connection, worker_id: str, hello: Hello, proxy_address: str) -> NewSession:
    """Raises the session number and locks the worker's row: no older connection can write from here on.

    Raises:
        WorkerGoneError: the worker is deleted.
    """
    row = await connection.fetchrow(
        _HELLO, worker_id, hello.boot_id, hello.agent_version, hello.highest_term, proxy_address, hello.protocol
    )
    if row is None:
        raise WorkerGoneError(worker_id)
    await connection.execute(_CONNECTED, worker_id, row["session"])
    rebooted = row["boot_before"] not in ("", hello.boot_id)
    term_ahead = hello.highest_term > max(row["term"], row["term_before"])
    return NewSession(row["session"], row["term"], row["at"], rebooted, term_ahead)


async def write_host(connection: Connection, worker_id: str, inventory: Inventory, *, gpus_known: bool) -> None:
    """Stores the host's own facts from a full report.

    The agent's own labels are derived anew, for agents that send none, and for those that send a user's instead.
    """
    host, labels = inventory.host, with_agent_labels(inventory.host, inventory.gpus)
    await connection.execute(
        _HOST, worker_id, host.hostname, host.os, host.arch, host.driver, host.simulated, labels, gpus_known,
        None if host.engines is None else list(host.engines),
    )  # fmt: skip


async def write_gpus_known(connection: Connection, worker_id: str, *, gpus_known: bool) -> None:
    """Stores whether the GPUs could be read, if that changed."""
    await connection.execute(_GPUS_KNOWN, worker_id, gpus_known)
