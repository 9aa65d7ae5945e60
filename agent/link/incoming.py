"""Receives and handles the controller's messages."""

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

import structlog

from agent.errors import CredentialReplacedError, RejectedError
from agent.link.channel import Channel, InvalidMessageError
from agent.link.context import LinkContext
from agent.link.credential import credential_refused
from schemas.wire import (
    AttestedTerm,
    Command,
    CommandResult,
    ControllerMessage,
    NewCredential,
    Rejected,
    ReportAck,
    SamplesAck,
    Welcome,
)

_SILENCE_LIMIT_S: Final = 10.0  # three unanswered pings: the controller or the network is down

log = structlog.get_logger()


async def receive_all(context: LinkContext, channel: Channel, on_ack: Callable[[], None]) -> NoReturn:
    """Handles messages until the connection is lost. `on_ack` is called at each acknowledgement of reports.

    Raises:
        UnreachableError: the connection is lost.
        CredentialReplacedError: the agent has a new credential.
        RefusedError: the controller refuses this agent permanently.
    """
    while True:
        match await next_message(context, channel, _SILENCE_LIMIT_S):
            case Command() as command:
                context.send_queue.add(context.supervisor.handle(command))
            case ReportAck(seq=seq):
                context.journal.acknowledge(seq)
                on_ack()
            case SamplesAck(seq=seq):
                context.backlog.acknowledge(seq)
            case Welcome() as repeated:  # an operator has dismissed Xids, or a later term has started
                context.inventory.dismiss(repeated.dismissed)
                remember_proof(context, repeated)
            case NewCredential(credential=credential, proxy_secret=secret):
                # Before their use, so that they survive a crash.
                context.journal.remember(next_credential=credential, next_proxy_secret=secret or None)
                raise CredentialReplacedError("the controller has handed over a new credential")
            case Rejected() as message:
                rejected(context, message)
            case _:
                pass  # a pong
        await asyncio.sleep(0)  # a burst that is already buffered must not hold the loop


def remember_proof(context: LinkContext, welcome: Welcome) -> None:
    """Keeps the controller's proof of its term, to show it after a loss of commits. Older controllers send none."""
    if welcome.proof:
        told = AttestedTerm(term=welcome.term, session=welcome.session, proof=welcome.proof)
        context.journal.remember(told=told)


async def next_message(context: LinkContext, channel: Channel, limit_s: float) -> ControllerMessage | None:
    """None for a ping, a pong or an invalid message. An invalid command is refused, so that no controller waits."""
    try:
        return await channel.receive(limit_s)
    except InvalidMessageError as invalid:
        log.warning("invalid message from the controller", worker=context.name, error=str(invalid))
        number = invalid.command_id
        if number is not None:
            result = CommandResult(command_id=number, outcome="refused", code="bad_command", message=str(invalid))
            context.send_queue.add(result)
        return None


def rejected(context: LinkContext, message: Rejected) -> NoReturn:
    """Raises RejectedError (a later attempt may succeed) or RefusedError."""
    if message.final:
        credential_refused(context, message.message)
    raise RejectedError(f"rejected: {message.message}")
