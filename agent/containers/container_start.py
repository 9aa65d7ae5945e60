"""The start of one container, which can be given up so that nothing of it runs."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import structlog

from agent.containers.docker_engine import DockerAwayError, DockerEngine, DockerRefusalError
from agent.decide.containers import lacks_init

_RETRY_S: Final = 1.0
_REMOVE_LIMIT_S: Final = 2.0  # of a container that cannot run; if it stays, it is removed later, as a stray
_REPORT_AFTER_S: Final = 3.0
_CONFLICT: Final = 409

log = structlog.get_logger()


class ContainerStart:
    """One attempt. `config` returns Docker's request, with an init process or without."""

    def __init__(self, engine: DockerEngine, name: str, config: Callable[[bool], dict[str, Any]]) -> None:
        self.done = False
        self._engine = engine
        self._name = name
        self._config = config
        self._create_sent = False  # Docker may have created it
        self._start_sent = False  # from now on it may run

    async def run(self) -> None:
        """Raises DockerRefusalError or DockerAwayError, with nothing left of the container."""
        try:
            for init in (True, False):
                try:
                    await self._create(self._config(init))
                    self._start_sent = True
                    await self._engine.start(self._name)
                except DockerRefusalError as error:
                    if not (init and lacks_init(str(error))):
                        raise
                    await self._remove_for_certain()
                else:
                    self.done = True
                    return
        except (DockerAwayError, DockerRefusalError):  # if Docker is away, the container may run
            await self._remove_for_certain()
            raise

    async def give_up(self, report: Callable[[str], object]) -> None:
        """Returns once nothing of it can run. `run` was cancelled before. `report` gets the reason for a delay.

        Docker continues with requests that it has. A container that is only created never runs; a started container
        may run until Docker reports that it is gone.
        """
        if not self._create_sent:
            return
        if not self._start_sent:
            with contextlib.suppress(TimeoutError, DockerAwayError, DockerRefusalError):
                async with asyncio.timeout(_REMOVE_LIMIT_S):
                    await self._engine.remove(self._name)
            return
        removing = asyncio.create_task(self._remove_for_certain(), name=f"remove {self._name}")
        try:
            done, _ = await asyncio.wait([removing], timeout=_REPORT_AFTER_S)
            if not done:
                report(f"Docker hangs in the start of container {self._name}: it may run until Docker has removed it")
            await removing
        finally:
            removing.cancel()
            await asyncio.gather(removing, return_exceptions=True)

    async def _create(self, config: dict[str, Any]) -> None:
        self._create_sent = True
        try:
            await self._engine.create(self._name, config)
        except DockerRefusalError as error:
            if error.status != _CONFLICT:
                raise
            self._start_sent = True  # left by an agent that was killed
            await self._remove_for_certain()
            await self._engine.create(self._name, config)

    async def _remove_for_certain(self) -> None:
        """Returns once Docker reports that the container is gone: until then it may hold GPUs."""
        while True:
            try:
                await self._engine.remove(self._name)
                if await self._engine.inspect(self._name) is None:
                    self._start_sent = False
                    return
            except (DockerAwayError, DockerRefusalError) as error:
                log.warning("container not removed", container=self._name, error=str(error))
            await asyncio.sleep(_RETRY_S)
