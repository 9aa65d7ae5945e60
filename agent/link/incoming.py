"""Reads the controller's messages, and handles those that end or refuse something: invalid ones and rejections."""

from typing import Any, NoReturn

import structlog

from agent.errors import UnreachableError
from agent.link.channel import Channel, InvalidMessageError
from agent.link.context import LinkContext
from agent.link.credential import credential_refused
from schemas.wire import CommandResult, Rejected

log = structlog.get_logger()


async def next_message(context: LinkContext, channel: Channel, limit_s: float) -> Any:
    """The next message; None for a ping, a pong or an invalid message.

    An invalid command is refused by its number, so that the controller does not wait for its result.
    """
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
    """Handles a rejection.

    Raises:
        UnreachableError: a later attempt may succeed.
        RefusedError: the controller refuses this agent for good.
    """
    if message.final:
        credential_refused(context, message.message)
    raise UnreachableError(f"rejected: {message.message}")
