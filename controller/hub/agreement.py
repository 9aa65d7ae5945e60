"""Negotiates the protocol of a connection, by the rule of `schemas.wire.protocol`.

A refusal names the protocols of both sides, to the agent, in the log and in an event.
"""

import asyncio
import logging
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from aiohttp import hdrs, web

from controller.domain.events import NewEvent
from controller.runtime.database import DATABASE_ERRORS
from controller.store.core.database import Database
from controller.store.core.events import notify, write_events
from controller.store.workers.conditions import set_condition
from controller.store.workers.sessions import Identity
from schemas.wire import UNNAMED, Protocols, no_common_protocol, offered_protocols

log = structlog.get_logger(__name__)

COMPATIBLE: Final = "Compatible"  # the condition of a worker
NO_COMMON_PROTOCOL: Final = "no_common_protocol"
REACHABLE: Final = "Reachable"  # the condition of a worker
ADVERTISE_REFUSED: Final = "advertise_refused"
WRITE_LIMIT_S: Final = 10.0

# aiohttp warns of every connection without a common subprotocol, with unauthenticated input.
logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)


class NoCommonProtocolError(Exception):
    """Agent and controller have no protocol in common; the text names both sides' protocols."""


class _OtherHello(msgspec.Struct, tag="hello"):
    protocol: int


def offered_by(request: web.Request) -> Protocols:
    """The protocols that the agent offers at the upgrade."""
    return offered_protocols(request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").split(","))


def subprotocols(offered: Protocols, spoken: Protocols) -> tuple[str, ...]:
    """The answer to the upgrade: the highest common protocol, if any."""
    common = spoken.common(offered)
    return () if common is None else Protocols(common, common).names()


def check_offer(offered: Protocols, spoken: Protocols) -> None:
    """Refuses an agent at the upgrade.

    Raises:
        NoCommonProtocolError: no offered protocol is spoken here. An agent that offers none names it in its hello.
    """
    if offered != UNNAMED and spoken.common(offered) is None:
        raise NoCommonProtocolError(no_common_protocol(offered, spoken))


def check_unparsed(raw: str, offered: Protocols, spoken: Protocols) -> None:
    """Raises `NoCommonProtocolError` if a hello that does not parse names a protocol that is not spoken here."""
    with suppress(msgspec.DecodeError, RecursionError):
        check_protocol(msgspec.json.decode(raw, type=_OtherHello).protocol, offered, spoken)


def check_protocol(number: int, offered: Protocols, spoken: Protocols) -> None:
    """Raises `NoCommonProtocolError` if the hello's protocol is not spoken here."""
    if number not in spoken:
        agent = offered if number in offered else Protocols(number, number)
        raise NoCommonProtocolError(no_common_protocol(agent, spoken))


async def record_refusal(database: Database, identity: Identity, why: str, reason: str = NO_COMMON_PROTOCOL) -> None:
    """Sets a condition of the worker, and writes an event if the condition is new. Best effort."""
    log.warning("agent refused", worker=identity.name, code=reason, reason=why)
    condition = REACHABLE if reason == ADVERTISE_REFUSED else COMPATIBLE
    message = f"the agent of {identity.name} is refused: {why}"
    try:
        async with asyncio.timeout(WRITE_LIMIT_S), database.transaction() as connection:
            if await set_condition(connection, identity.id, condition, reason, why):
                await write_events(
                    connection,
                    [NewEvent(reason, message, (f"worker:{identity.id}",), actor=f"agent:{identity.name}")],
                )
                await notify(connection, "worker", [identity.id])
    except DATABASE_ERRORS as error:
        log.warning("refusal not recorded", worker=identity.name, error=str(error) or type(error).__name__)
