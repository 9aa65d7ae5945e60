"""The handshake: one transaction writes a hello and makes the connection the worker's newest session."""

import asyncio
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog
from aiohttp import WSMsgType, web

from controller.decide.worker_phases import quarantine_after
from controller.domain.events import NewEvent
from controller.domain.start_receipts import open_sealed, process_named_by
from controller.hub.agent_messages import MalformedMessageError, read_message
from controller.hub.agreement import COMPATIBLE, REACHABLE, check_protocol, check_unparsed
from controller.hub.conditions import record_gpus, record_runtimes
from controller.hub.devices import write_inventory
from controller.hub.duplicate_agents import held_for_s, identity_of, place_of, record_quarantine
from controller.hub.heartbeats import details_of, foreign_events
from controller.hub.lost_history import proven_by
from controller.hub.proxy_address import (
    DEFAULT_TRUST,
    Address,
    AddressRules,
    HostTrust,
    judged_address,
    literal,
    own_addresses,
    proxy_address,
)
from controller.hub.reports import key_of, stored, stray_events
from controller.hub.session import SEND_LIMIT_S, close_socket
from controller.hub.worker_budget import Frames
from controller.runtime.database import DATABASE_ERRORS
from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.core.database import Connection, Database
from controller.store.core.events import notify, write_events
from controller.store.deployments import processes
from controller.store.deployments.adoption import keep_orphans, undecided_receipts
from controller.store.workers import sessions
from controller.store.workers.conditions import clear_conditions
from controller.store.workers.devices import read_dismissed, write_details
from controller.store.workers.heartbeats import Reading, write_readings
from controller.store.workers.sessions import Identity, NewSession
from controller.store.workers.stated import Stated, read_stated
from schemas.wire import LOWEST_PROTOCOL, Hello, ProcessReport, Protocols, Rejected, encode

log = structlog.get_logger(__name__)

HELLO_LIMIT_S: Final = 10.0
WRITE_LIMIT_S: Final = 20.0
_LISTED: Final = 50  # processes named in an event's evidence


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """The result of an accepted hello."""

    session: int
    term: int
    at: datetime
    strays: tuple[processes.Stray, ...]
    held_elsewhere: frozenset[str]  # reported GPUs that belong to another worker
    dismissed: Mapping[str, int]  # by GPU: number of an operator's dismissals of its driver's reports
    proxy_secret: str
    orphans: tuple[ProcessReport, ...] = ()  # the ledger may have lost them: the leader decides
    held_for_s: float = 0.0  # seconds for which it is not believed; then it must reconnect
    unread: frozenset[tuple[str, int, int]] = frozenset()  # processes whose receipts cannot be read here


class HandshakeRefusedError(Exception):
    """The handshake is refused; the text has the reason. `final`: the agent must not reconnect with its credential."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


def bearer(request: web.Request) -> str | None:
    scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
    return credential.strip() or None if scheme.lower() == "bearer" else None


async def receive_hello(frames: Frames, offered: Protocols, spoken: Protocols) -> Hello:
    """Waits for the first message.

    Raises:
        MalformedMessageError: it is not a hello.
        HandshakeRefusedError: no message arrived in time, or the connection ended.
        NoCommonProtocolError: the hello has a protocol that is not spoken here.
    """
    try:
        async with asyncio.timeout(HELLO_LIMIT_S):
            message = await frames.next()
    except (TimeoutError, ConnectionError) as error:
        raise HandshakeRefusedError(f"no hello arrived within {HELLO_LIMIT_S:g} s") from error
    if message.type is not WSMsgType.TEXT:
        raise HandshakeRefusedError("the connection ended or sent binary data before a hello")
    with frames.budget.measured():
        try:
            hello = read_message(message.data)
        except MalformedMessageError:
            check_unparsed(message.data, offered, spoken)
            raise
    if not isinstance(hello, Hello):
        raise MalformedMessageError(f"hello: must be the first message, got {hello.__struct_config__.tag!r}")
    check_protocol(hello.protocol, offered, spoken)
    return hello


async def accept(
    database: Database,
    identity: Identity,
    hello: Hello,
    peer: str | None,
    *,
    addresses: Sequence[Address] = (),
    trust: HostTrust = DEFAULT_TRUST,
    keys: SecretKeys = NO_KEYS,
) -> HandshakeResult:
    """Writes a hello, as the worker's newest session.

    Args:
        database: of the ledger.
        identity: of the credential.
        hello: to write.
        peer: the address from which the agent connects.
        addresses: of the advertised host; empty if unknown.
        trust: in the host's statements about itself.
        keys: of secrets.

    Raises:
        MalformedMessageError: the address of the agent's proxy is invalid.
        AdvertiseRefusedError: that address is not believed.
        HandshakeRefusedError: the hello is the first since a boot or a loss of commits, but not the newest.
        WorkerGoneError: the worker is deleted.
    """
    address = proxy_address(hello, peer)
    worker = identity.id
    async with asyncio.timeout(WRITE_LIMIT_S), database.transaction() as connection:
        if hello.advertise is not None:
            stated = await read_stated(connection, worker)
            address = judged_address(address, addresses, _address_rules(identity, stated, peer, trust))
        new = await sessions.begin_session(
            connection,
            worker,
            hello,
            address,
            identity=identity_of(hello),
            place=place_of(hello, peer),
            judge=quarantine_after,
            credential_hash=identity.credential_hash,
            proven=proven_by(identity, hello) is not None,
            keys=keys,
        )
        events = await record_quarantine(connection, identity, new)
        await clear_conditions(connection, worker, (COMPATIBLE, REACHABLE))
        if new.held:
            return await _hold(connection, worker, new, events)
        first = new.reports_first or new.rebooted
        if first and not new.follows(identity):  # its list of processes would end those that were started since
            raise HandshakeRefusedError("another hello of this worker was written meanwhile; connect again")
        unread = _unread(hello, worker) if new.receipt_key is None and new.lost_some else frozenset()
        written, gone = await _write_processes(connection, worker, hello, new, unread, names_all=first)
        plan = await write_inventory(connection, worker, hello.inventory)
        await sessions.write_host(connection, worker, hello.inventory, gpus_known=plan.gpus_known, trusted=trust.labels)
        await record_runtimes(connection, worker, hello.inventory)
        # Before anything can be placed here, so that placement knows the memory of unclaimed processes.
        foreign = await write_readings(
            connection, [Reading(worker, g.uuid, g.used_mib, g.utilization, 0.0) for g in hello.inventory.gpus or ()]
        )
        await write_details(connection, details_of(worker, hello.inventory.gpus))
        events += [*_hello_events(identity, hello, new), *_gone_events(identity, gone)]
        events += [*foreign_events(foreign), *stray_events(worker, written.strays)]
        await write_events(connection, events)
        await record_gpus(connection, worker, identity.name, plan, hello.inventory.gpus_error)
        dismissed = (await read_dismissed(connection, [worker])).get(worker, {})
        await notify(connection, "worker", [worker])
        await notify(connection, "found", [worker] if written.orphans else [])
        await notify(connection, "process", written.deployments | {deployment for deployment, *_ in gone})
        await sessions.write_connected(connection, worker, new.session)
    held_elsewhere = frozenset(device.row.uuid for device in plan.refused)
    orphans = tuple(orphan.report for orphan in written.orphans)
    return HandshakeResult(
        new.session, new.term, new.at, tuple(written.strays), held_elsewhere, dismissed, new.proxy_secret, orphans,
        unread=unread,
    )  # fmt: skip


async def _hold(connection: Connection, worker: str, new: NewSession, events: list[NewEvent]) -> HandshakeResult:
    """Writes the session of a quarantined worker, and nothing else of its hello."""
    await write_events(connection, events)
    await notify(connection, "worker", [worker])
    await sessions.write_connected(connection, worker, new.session)
    return HandshakeResult(
        new.session, new.term, new.at, (), frozenset(), {}, new.proxy_secret, held_for_s=held_for_s(new)
    )


async def _write_processes(
    connection: Connection,
    worker: str,
    hello: Hello,
    new: NewSession,
    unread: frozenset[tuple[str, int, int]],
    *,
    names_all: bool,
) -> tuple[processes.Written, list[tuple[str, str, int, int]]]:
    """Writes the reports of the agent's processes, and ends the processes that it no longer has."""
    reports = [processes.SessionReport(worker, new.session, stored(r), key_of(r) in unread) for r in hello.processes]
    if new.lost_some:
        await sessions.note_unread(connection, worker, unread=bool(unread))
    if new.receipt_key is not None and (new.lost_some or new.has_orphans):
        receipts = opened(hello.receipts, worker, new.receipt_key)
        if not new.lost_some:  # only orphans of earlier hellos are still undecided
            receipts = await undecided_receipts(connection, worker, receipts)
        await keep_orphans(connection, worker, new.session, hello.processes, receipts)
    written = await processes.write_reports(connection, reports)
    gone = await processes.end_missing(
        connection,
        worker,
        new.session,
        hello.processes,
        None if new.rebooted else hello.report_seq,  # a loss of power may set the number back too
        names_all=names_all,
    )
    return written, gone


def _address_rules(identity: Identity, stated: Stated, peer: str | None, trust: HostTrust) -> AddressRules:
    networks = None
    if stated.networks is not None:
        networks = (*map(ipaddress.ip_network, stated.networks), *trust.networks)
    return AddressRules(identity.name, literal(peer) if peer else None, own_addresses(), networks, stated.proxy_address)


async def refuse(request: web.Request, socket: web.WebSocketResponse, why: str, *, final: bool = False) -> None:
    """Sends the reason to the agent and closes the connection."""
    # An error here means that the agent has disconnected.
    with suppress(TimeoutError, ConnectionError, RuntimeError):
        async with asyncio.timeout(SEND_LIMIT_S):
            await socket.send_str(encode(Rejected(message=why, final=final), LOWEST_PROTOCOL))
    await close_socket(socket, request.transport)


async def record_malformed(database: Database, worker_id: str, name: str, error: MalformedMessageError) -> None:
    """Writes an event of an agent's malformed message. Best effort, as the connection is closed in any case."""
    event = NewEvent(
        "agent_message_malformed",
        f"the agent of {name} sent an invalid message: {error}",
        (f"worker:{worker_id}",),
        actor=f"agent:{name}",
    )
    try:
        async with asyncio.timeout(SEND_LIMIT_S), database.transaction() as connection:
            await write_events(connection, [event])
    except DATABASE_ERRORS as trouble:
        log.warning("malformed message not recorded", worker=name, message=str(error), error=str(trouble))


def opened(sealed: Iterable[str], worker_id: str, key: bytes) -> dict[tuple[str, int, int], dict[str, Any]]:
    """The receipts of this worker's processes, by process. Foreign and forged receipts are left out."""
    receipts = (open_sealed(text, key) for text in sealed)
    own = [receipt for receipt in receipts if receipt is not None and receipt["worker_id"] == worker_id]
    return {(receipt["instance"], receipt["epoch"], receipt["rank"]): receipt for receipt in own}


def _unread(hello: Hello, worker_id: str) -> frozenset[tuple[str, int, int]]:
    """The processes with receipts that cannot be verified here."""
    named = {process_named_by(text, worker_id) for text in hello.receipts}
    return frozenset(process for process in map(key_of, hello.processes) if process in named)


def _hello_events(identity: Identity, hello: Hello, new: NewSession) -> Iterable[NewEvent]:
    objects = (f"worker:{identity.id}",)
    if new.rebooted:
        yield NewEvent("worker_rebooted", f"worker {identity.name} rebooted", objects, {"boot_id": hello.boot_id})
    if new.term_ahead:
        yield NewEvent(
            "term_ahead",
            f"the agent of {identity.name} says that it has seen term {hello.highest_term}, but the leader's term is "
            f"{new.term}, and it does not prove that. Delete the worker and let it join again with an empty data "
            "folder",
            objects,
            {"agent": hello.highest_term, "leader": new.term},
        )


def _gone_events(identity: Identity, gone: list[tuple[str, str, int, int]]) -> Iterable[NewEvent]:
    if gone:
        listed = gone[:_LISTED]
        yield NewEvent(
            "processes_gone",
            f"the agent of {identity.name} no longer has {len(gone)} processes that ran there",
            (f"worker:{identity.id}", *sorted({f"instance:{instance}" for _, instance, _, _ in listed})),
            {"processes": [{"instance": i, "epoch": epoch, "rank": rank} for _, i, epoch, rank in listed]},
        )
