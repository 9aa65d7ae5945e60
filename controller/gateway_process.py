"""The gateway as a child of the controller: it serves the public port, ends with the controller, and is restarted.

The controller holds the public port's sockets, so connections wait while no gateway serves. A gateway's standard input
is a pipe from the controller, and the gateway ends when that closes. Where a gateway's first process has died, its
serving processes continue until the controller writes to the pipe, once their successors serve.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from controller.settings import ControllerSettings
from http1.protocol.listening import open_listeners

log = structlog.get_logger(__name__)

DRAIN_S: Final = 0.5
_READY_S: Final = 30.0
_STOP_S: Final = DRAIN_S + 1.0
_AGAIN_S: Final = 0.2  # after its end; doubles while it ends within `_LIVED_S`
_LONGEST_S: Final = 5.0
_LIVED_S: Final = 10.0
_BIND_S: Final = 3.0  # a gateway whose controller was killed ends within less
_REPLACED_S: Final = 610.0  # a little longer than answers of replaced processes may take
_REPLACED: Final = b"replaced"


class GatewayProcess:
    """Starts and restarts the gateway until `stop`.

    `listening`: the public port's sockets, one for each process. `api`: path of the controller's socket. `output`: for
    its log; None: this process's stderr. `tls`: files of certificate and key.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        listening: Sequence[socket.socket],
        api: Path,
        dsn: str,
        output: Path | None,
        tls: tuple[Path, Path] | None = None,
    ) -> None:
        self._settings = settings
        self._listening = listening
        self._api = api
        self._dsn = dsn
        self._output = output
        self._tls = tls
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._parent_pipes: list[int] = []  # writing ends, of this and earlier gateways

    async def start(self) -> None:
        """Returns when it serves, or after a limit. The reason is in its log then."""
        self._task = asyncio.create_task(self._keep(), name="gateway")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_S):
                await self._ready.wait()

    async def stop(self) -> None:
        """Ends it. Only requests to models get `DRAIN_S`."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for listening in self._listening:
            listening.close()
        process, self._process = self._process, None
        try:
            if process is not None and process.returncode is None:
                await self._end(process)
        finally:
            while self._parent_pipes:
                os.close(self._parent_pipes.pop())

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            log.warning("gateway did not stop in time, and is killed")
            process.kill()
            await process.wait()

    async def _keep(self) -> None:
        delay_s = _AGAIN_S
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            code = await self._run()
            delay_s = _AGAIN_S if loop.time() - started > _LIVED_S else min(delay_s * 2, _LONGEST_S)
            log.error("gateway ended, starting it again", exit_code=code, in_s=delay_s)
            await asyncio.sleep(delay_s)

    async def _run(self) -> int:
        """Runs it once; returns its exit code."""
        fds = [listening.fileno() for listening in self._listening]
        child_end, parent_pipe = os.pipe()
        earlier = tuple(self._parent_pipes)
        self._parent_pipes.append(parent_pipe)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, child_end)
            error = stack.enter_context(self._output.open("ab")) if self._output is not None else None
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "cli", "gateway", "--controller", str(self._api)),
                *("--drain", f"{DRAIN_S}s", "--listen-fds", ",".join(map(str, fds))),
                env=self._environment(),
                pass_fds=fds,
                stdin=child_end,
                stdout=asyncio.subprocess.PIPE,
                stderr=error,
                start_new_session=True,
            )
        process = self._process
        serving = asyncio.create_task(self._await_serving(process, earlier), name="gateway-serves")
        try:
            return await process.wait()
        finally:
            serving.cancel()

    async def _await_serving(self, process: asyncio.subprocess.Process, earlier: Sequence[int]) -> None:
        """Waits until all its processes serve, then ends processes that are left of earlier gateways."""
        if process.stdout is None:
            raise AssertionError("its output is a pipe")
        for _ in self._listening:
            if not await process.stdout.readline():
                return
        self._ready.set()
        for pipe in earlier:
            with contextlib.suppress(BrokenPipeError):
                os.write(pipe, _REPLACED)
            asyncio.get_running_loop().call_later(_REPLACED_S, self._close, pipe)

    def _close(self, pipe: int) -> None:
        if pipe in self._parent_pipes:
            self._parent_pipes.remove(pipe)
            os.close(pipe)

    def _environment(self) -> dict[str, str]:
        settings = self._settings
        tls = {} if self._tls is None else {"GPUWARD_TLS_CERT": str(self._tls[0]), "GPUWARD_TLS_KEY": str(self._tls[1])}
        return {
            **os.environ,
            **tls,
            "GPUWARD_DATABASE_URL": self._dsn,
            "GPUWARD_TRUSTED_PROXY": ",".join(str(network) for network in settings.trusted_proxy),
            "GPUWARD_CORS_ORIGINS": ",".join(settings.cors_origins),
            "GPUWARD_HSTS": f"{settings.hsts}s",
            "GPUWARD_BODIES_IN_FLIGHT": f"{settings.bodies_in_flight}MiB",
            "GPUWARD_BODIES_IN_FLIGHT_PER_KEY": f"{settings.bodies_in_flight_per_key}MiB",
            "GPUWARD_LOG_FORMAT": settings.log_format,
            "GPUWARD_LOG_LEVEL": settings.log_level,
        }


async def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Opens the public port's listening sockets. Raises OSError if the address is taken, or not this host's."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _BIND_S
    while True:
        try:
            return open_listeners(host, port, count)
        except OSError:
            if port == 0 or loop.time() > until:
                raise
        await asyncio.sleep(_AGAIN_S)
