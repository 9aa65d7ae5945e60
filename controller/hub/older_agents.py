"""What an agent of an older version is sent instead, where it would misunderstand. Pure.

Fields that came later are left out by `schemas.wire.encode`. Here stands what a field's value means to older agents.
"""

from typing import Final

from msgspec.structs import replace

from schemas.wire import Command, NewCredential, Rejected, ReportAck, SamplesAck, Welcome

Outgoing = Welcome | Command | ReportAck | SamplesAck | NewCredential | Rejected

_SIMULATED_ENGINE: Final = "{simulated_engine}"
_KNOWN_SINCE: Final = 4  # of the placeholder; agents before start the engine by the name of its module
_BY_MODULE: Final = ("{python}", "-m", "gpuward.agent.simulated_engine")


def for_agent(message: Outgoing, protocol: int) -> Outgoing:
    """The message as an agent of this protocol understands it."""
    if protocol >= _KNOWN_SINCE or not isinstance(message, Command) or message.start is None:
        return message
    argv = message.start.argv
    if argv[:1] != (_SIMULATED_ENGINE,):
        return message
    start = replace(message.start, argv=(*_BY_MODULE, *argv[1:]))
    return replace(message, start=start)
