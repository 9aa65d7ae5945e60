"""What the controller is told of this host's Docker engine, asked again now and then."""

import asyncio
from typing import Final

from agent.clock import Clock
from agent.decide.doctor.gpus import docker_runtime
from agent.doctor.docker_probe import docker_facts
from schemas.wire import RuntimeFacts

_EVERY_S: Final = 30.0
_LIMIT_S: Final = 10.0


class KnownRuntimes:
    """The facts, as last asked.

    Args:
        address: of the Docker engine; None: containers are switched off.
        clock: seconds since the host's boot.
    """

    def __init__(self, address: str | None, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._asked_s = float("-inf")
        self._known: tuple[RuntimeFacts, ...] = ()

    async def read(self) -> tuple[RuntimeFacts, ...]:
        """Asks where the last answer is old. An engine that is too slow to say counts as before."""
        if self._address is None or self._clock() - self._asked_s < _EVERY_S:
            return self._known
        try:
            async with asyncio.timeout(_LIMIT_S):
                self._known = (docker_runtime(await docker_facts(self._address)),)
        except TimeoutError:
            pass
        self._asked_s = self._clock()
        return self._known
