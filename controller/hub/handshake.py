"""A connection's first moments: whose credential, a hello, and one transaction that makes it the newest session."""

import asyncio
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import structlog
from aiohttp import WSMsgType, web

from controller.domain.events import NewEvent
from controller.hub.devices import inventory_events, write_inventory
from controller.hub.heartbeats import foreign_events
from controller.hub.reports import stray_event, truncated
from controller.hub.session import SEND_LIMIT_S, close_socket
from controller.hub.validate import MalformedMessageError, parse_message, proxy_address
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.core.events import write_events
from controller.store.core.notify import notify
from controller.store.deployments import processes
from controller.store.workers import sessions
from controller.store.workers.heartbeats import Reading, write_readings
from controller.store.workers.sessions import Identity, NewSession
from schemas.wire import Hello, Rejected

log = structlog.get_logger(__name__)

HELLO_LIMIT_S: Final = 10.0
WRITE_LIMIT_S: Final = 20.0
_LISTED: Final = 50  # processes named in an event's evidence


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """What a hello has led to."""

    session: int
    term: int
    at: datetime
    strays: tuple[processes.Stray, ...]
    held_elsewhere: frozenset[str]  # GPUs that it reports and another worker holds


class HandshakeRefusedError(Exception):
    """The agent is not served; the text tells it why. `final`: it shall not dial again with its credential."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


def bearer(request: web.Request) -> str | None:
    """The credential in the request's header; None where there is none."""
    scheme, _, credential = request.headers.get("Authorization", "").partition(" ")
    return credential.strip() or None if scheme.lower() == "bearer" else None


async def identify(database: Database, credential: str) -> Identity | None:
    """The worker to which the credential belongs, deleted or not."""
    digest = hashlib.sha256(credential.encode("utf-8", "surrogateescape")).digest()
    async with asyncio.timeout(WRITE_LIMIT_S), database.connection() as connection:
        return await sessions.find_by_credential(connection, digest)


async def receive_hello(socket: web.WebSocketResponse) -> Hello:
    """Waits for the first message.

    Raises:
        MalformedMessageError: it is no hello.
        TurnedAwayError: none came in time.
    """
    try:
        async with asyncio.timeout(HELLO_LIMIT_S):
            message = await socket.receive()
    except TimeoutError as error:
        raise HandshakeRefusedError(f"no hello came within {HELLO_LIMIT_S:g} s") from error
    if message.type is not WSMsgType.TEXT:
        raise HandshakeRefusedError("the connection ended, or brought something that is not text, before a hello came")
    hello = parse_message(message.data)
    if not isinstance(hello, Hello):
        raise MalformedMessageError(f"hello: must come first, before {hello.type!r}")
    return hello


async def accept(database: Database, identity: Identity, hello: Hello, peer: str | None) -> HandshakeResult:
    """Writes the whole picture that a hello brings, as the worker's newest session.

    Raises:
        MalformedMessageError: the address of the agent's proxy makes no sense.
        WorkerGoneError: the worker was deleted meanwhile.
    """
    address = proxy_address(hello, peer)
    worker = identity.id
    async with asyncio.timeout(WRITE_LIMIT_S), database.transaction() as connection:
        new = await sessions.begin_session(connection, worker, hello, address)
        reports = [processes.SessionReport(worker, new.session, truncated(report)) for report in hello.processes]
        written = await processes.write_reports(connection, reports)
        gone = await processes.end_missing(connection, worker, new.session, hello.processes, hello.report_seq)
        plan = await write_inventory(connection, worker, hello.inventory)
        await sessions.write_host(connection, worker, hello.inventory.host, gpus_known=plan.gpus_known)
        # Before anything can be placed here: what processes of others use already.
        foreign = await write_readings(
            connection, [Reading(worker, g.uuid, g.used_mib, g.utilization, 0.0) for g in hello.inventory.gpus or ()]
        )
        events = [*_hello_events(identity, hello, new), *_gone_events(identity, gone)]
        events += [
            *inventory_events(identity.id, identity.name, plan),
            *foreign_events(foreign),
            *(stray_event(worker, s) for s in written.strays),
        ]
        await write_events(connection, events)
        await notify(connection, "worker", [worker])
        await notify(connection, "process", written.deployments | {deployment for deployment, *_ in gone})
    held_elsewhere = frozenset(device.row.uuid for device in plan.refused)
    return HandshakeResult(new.session, new.term, new.at, tuple(written.strays), held_elsewhere)


async def refuse(request: web.Request, socket: web.WebSocketResponse, why: str, *, final: bool = False) -> None:
    """Tells an agent why it is not served, and closes."""
    log.info("agent turned away", peer=request.remote, why=why)
    # What goes wrong here means that it has gone by itself.
    with suppress(TimeoutError, ConnectionError, RuntimeError):
        async with asyncio.timeout(SEND_LIMIT_S):
            await socket.send_str(Rejected(message=why, final=final).model_dump_json())
    await close_socket(socket, request.transport)


async def record_malformed(database: Database, worker_id: str, name: str, error: MalformedMessageError) -> None:
    """Records what an agent sent amiss. Best effort: its connection is closed either way."""
    event = NewEvent("agent_message_malformed", f"the agent of {name} sent: {error}", (f"worker:{worker_id}",))
    try:
        async with asyncio.timeout(SEND_LIMIT_S), database.transaction() as connection:
            await write_events(connection, [event])
    except DATABASE_ERRORS as trouble:
        log.warning("malformed message not recorded", worker=name, message=str(error), error=str(trouble))


def _hello_events(identity: Identity, hello: Hello, new: NewSession) -> Iterable[NewEvent]:
    objects = (f"worker:{identity.id}",)
    if new.rebooted:
        yield NewEvent("worker_rebooted", f"worker {identity.name} has rebooted", objects, {"boot_id": hello.boot_id})
    if new.term_ahead:
        yield NewEvent(
            "term_ahead",
            f"the agent of {identity.name} has obeyed term {hello.highest_term}, but term {new.term} leads: was the "
            "database restored from a backup? It obeys again once the controller has been restarted often enough to "
            "lead in a later term, or once the worker is deleted and joins anew with an empty data folder",
            objects,
            {"agent": hello.highest_term, "leader": new.term},
        )


def _gone_events(identity: Identity, gone: list[tuple[str, str, int, int]]) -> Iterable[NewEvent]:
    if gone:
        listed = gone[:_LISTED]
        yield NewEvent(
            "processes_gone",
            f"the agent of {identity.name} knows nothing of {len(gone)} processes that ran there",
            (f"worker:{identity.id}", *sorted({f"instance:{instance}" for _, instance, _, _ in listed})),
            {"processes": [{"instance": i, "epoch": epoch, "rank": rank} for _, i, epoch, rank in listed]},
        )
