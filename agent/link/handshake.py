"""The handshake of a new connection: hello with the agent's whole state, then the controller's welcome."""

from typing import Final

from agent.errors import UnreachableError
from agent.link.channel import Channel, UnauthorizedError, time_limit
from agent.link.context import LinkContext
from agent.link.credential import credential, credential_refused
from agent.link.incoming import next_message, rejected
from schemas.version import __version__
from schemas.wire import Hello, Rejected, Welcome

_WELCOME_LIMIT_S: Final = 15.0


async def connect(context: LinkContext) -> tuple[Channel, Welcome]:
    """One attempt: joins if need be, dials, and exchanges hello and welcome.

    Raises:
        UnreachableError: a later attempt may succeed.
        RefusedError: the controller refuses this agent for good.
    """
    secret = await credential(context)
    try:
        channel = await Channel.dial(context.http, context.settings.controller_url, secret, context.heartbeat)
    except UnauthorizedError as error:
        credential_refused(context, str(error))
    try:
        return channel, await _handshake(context, channel)
    except BaseException:
        await channel.close()
        raise


async def _handshake(context: LinkContext, channel: Channel) -> Welcome:
    journal = context.journal
    inventory = await context.inventory.read()
    context.inventory.mark_reported(inventory)
    context.send_queue.clear()
    hello = Hello(
        agent_version=__version__,
        boot_id=context.boot_id,
        highest_term=journal.facts.highest_term,
        report_seq=journal.facts.report_seq,
        advertise=context.settings.advertised(context.proxy_port),
        proxy_port=context.proxy_port,
        sent_s=context.clock(),
        inventory=inventory,
        processes=tuple(record.report() for record in journal.unacknowledged()),
    )
    await channel.send(hello)
    answer = None
    async with time_limit(_WELCOME_LIMIT_S, "no welcome"):
        while answer is None:
            answer = await next_message(context, channel, _WELCOME_LIMIT_S)
    if isinstance(answer, Rejected):
        rejected(context, answer)
    if not isinstance(answer, Welcome):
        raise UnreachableError("the controller's first message must be a welcome")
    if answer.term < journal.facts.highest_term:
        raise UnreachableError(f"the controller's term {answer.term} is over")
    journal.remember(worker=answer.worker, highest_term=answer.term, proxy_secret=answer.proxy_secret)
    return answer
