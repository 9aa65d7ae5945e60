"""The handshake of a new connection: hello with the agent's state, then the controller's welcome."""

import time
from typing import Final, NoReturn

from agent.engine_proxy.secrets import used_from_now_on
from agent.errors import RejectedError, UnreachableError
from agent.link.channel import Channel, UnauthorizedError, time_limit
from agent.link.context import LinkContext
from agent.link.credential import credential_refused, credentials, remember_used
from agent.link.incoming import next_message, rejected, remember_proof
from agent.state.process_records import receipts_of
from schemas.version import __version__
from schemas.wire import UNNAMED, ControllerMessage, Hello, Rejected, Welcome, no_common_protocol

_WELCOME_LIMIT_S: Final = 15.0


async def connect(context: LinkContext) -> tuple[Channel, Welcome]:
    """One attempt: joins if necessary, dials, and exchanges hello and welcome.

    Raises:
        UnreachableError: a later attempt may succeed.
        RefusedError: the controller refuses this agent permanently.
    """
    channel, used = await _dial(context)
    try:
        welcome = await _handshake(context, channel)
    except BaseException:
        await channel.close()
        raise
    remember_used(context, used)
    return channel, welcome


async def _dial(context: LinkContext) -> tuple[Channel, str]:
    """An open connection, and its accepted credential."""
    refused = ""
    for secret in await credentials(context):
        try:
            channel = await Channel.dial(
                context.http,
                context.controllers.url,
                secret,
                context.heartbeat,
                context.spoken,
                context.controllers.tls(),
            )
        except UnauthorizedError as error:
            refused = str(error)
        else:
            return channel, secret
    return credential_refused(context, refused)


async def _handshake(context: LinkContext, channel: Channel) -> Welcome:
    if channel.protocol is None:
        await _no_common_protocol(context, channel)
    journal = context.journal
    inventory = await context.inventory.read()
    context.inventory.mark_reported(inventory)
    context.send_queue.clear()
    hello = Hello(
        protocol=channel.protocol,
        agent_version=__version__,
        boot_id=context.boot_id,
        highest_term=journal.host_state.highest_term,
        highest_session=journal.host_state.highest_session,
        told=journal.host_state.told,
        takes_proxy_secrets=True,
        report_seq=journal.host_state.report_seq,
        advertise=context.settings.advertised(context.proxy_port),
        proxy_port=context.proxy_port,
        sent_s=context.clock(),
        certificate=context.certificate(),
        inventory=inventory,
        processes=tuple(record.report() for record in journal.unacknowledged()),
        receipts=receipts_of(journal.live()),
    )
    await channel.send(hello)
    answer = await _answer(context, channel)
    if not isinstance(answer, Welcome):
        raise UnreachableError("the controller's first message must be a welcome")
    if answer.term < journal.host_state.highest_term:
        raise UnreachableError(f"the controller's term {answer.term} is over")
    journal.remember(
        worker=answer.worker,
        highest_term=answer.term,
        highest_session=answer.session,
        **used_from_now_on(journal.host_state, answer.proxy_secret, time.time()),
    )
    remember_proof(context, answer)
    return answer


async def _answer(context: LinkContext, channel: Channel) -> ControllerMessage:
    """The controller's first message. Raises RejectedError, UnreachableError or RefusedError."""
    answer = None
    async with time_limit(_WELCOME_LIMIT_S, "no welcome"):
        while answer is None:
            answer = await next_message(context, channel, _WELCOME_LIMIT_S)
    if isinstance(answer, Rejected):
        rejected(context, answer)
    return answer


async def _no_common_protocol(context: LinkContext, channel: Channel) -> NoReturn:
    """Raises RejectedError, with the controller's message if one comes: it names both sides."""
    # An old controller sends no message before a hello.
    try:
        await _answer(context, channel)
    except RejectedError:
        raise
    except UnreachableError as error:
        raise RejectedError(no_common_protocol(context.spoken, UNNAMED)) from error
    raise RejectedError(no_common_protocol(context.spoken, UNNAMED))
