"""Quarantine of agents that share one worker's identity. Neither is believed until only one of them connects.

A hello that takes over from a live connection of another agent is held: its reports are not written, and it gets no
commands, so neither agent's engines are stopped. After a quiet time it must reconnect, and is then believed.
"""

from typing import Final

import structlog

from controller.domain.events import NewEvent
from controller.domain.workers import TWO_IDENTITIES
from controller.store.core.database import Connection
from controller.store.workers.conditions import clear_condition, set_condition
from controller.store.workers.sessions import Identity, NewSession
from schemas.wire import Hello

log = structlog.get_logger(__name__)

STABLE: Final = "Stable"  # the condition of a worker
BELIEVED_AFTER_S: Final = 20.0  # without another take-over


def identity_of(hello: Hello) -> str:
    """Distinguishes two agents with one credential. A restarted agent keeps its identity: host, boot and proxy port."""
    return f"{hello.boot_id} {hello.inventory.host.hostname} {hello.proxy_port}"


def place_of(hello: Hello, peer: str | None) -> str:
    """Describes the agent's location for operators."""
    return f"{hello.inventory.host.hostname} at {peer or 'an unknown address'} (proxy port {hello.proxy_port})"


def held_for_s(new: NewSession) -> float:
    """Seconds for which a held connection is not believed."""
    if new.quarantine is None:
        return BELIEVED_AFTER_S
    return max(1.0, (new.quarantine.until - new.at).total_seconds() + 1.0)


async def record_quarantine(connection: Connection, identity: Identity, new: NewSession) -> list[NewEvent]:
    """Sets the worker's condition during a quarantine, and clears it afterwards.

    Returns:
        The event of a new quarantine, for the caller to write.
    """
    quarantine = new.quarantine
    if quarantine is None:
        if not new.held:
            await clear_condition(connection, identity.id, STABLE)
        return []
    if quarantine.reason == TWO_IDENTITIES:
        why = (
            f"two agents connect with its identity: {', '.join(sorted(quarantine.addresses))}; stop one of them, empty "
            "its data folder, and let it join with a token and a name of its own"
        )
    else:
        why = f"its agent reconnects too often: {quarantine.addresses[-1]}; read its log and check the network"
    await set_condition(connection, identity.id, STABLE, quarantine.reason, why)
    if not new.newly:
        return []
    log.warning("worker quarantined", worker=identity.name, reason=quarantine.reason, addresses=quarantine.addresses)
    message = f"worker {identity.name} is quarantined: {why}"
    evidence = {"reason": quarantine.reason, "addresses": list(quarantine.addresses)}
    return [NewEvent("worker_quarantined", message, (f"worker:{identity.id}",), evidence)]
