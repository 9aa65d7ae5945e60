"""A probe of the Docker engine of the host, for `gpuward doctor` and for the controller."""

import asyncio
import os
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import orjson

from agent.clock import Clock
from agent.decide.doctor.gpus import DockerProbe, docker_runtime
from agent.doctor.programs import toolkit_version
from schemas.wire import ReportedRuntime

_DOCKER_LIMIT_S: Final = 4.0
_ANSWER_MAX_BYTES: Final = 2**20
_EVERY_S: Final = 30.0
_LIMIT_S: Final = 10.0


class KnownRuntimes:
    """This host's Docker engine for the controller, read at most every 30 s."""

    def __init__(self, address: str | None, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._read_s = float("-inf")
        self._known: tuple[ReportedRuntime, ...] = ()

    async def read(self) -> tuple[ReportedRuntime, ...]:
        """The last known state if the engine answers too slowly."""
        if self._address is None or self._clock() - self._read_s < _EVERY_S:
            return self._known
        try:
            async with asyncio.timeout(_LIMIT_S):
                self._known = (docker_runtime(await probe_docker(self._address)),)
        except TimeoutError:
            pass
        self._read_s = self._clock()
        return self._known


async def probe_docker(address: str | None) -> DockerProbe:
    """The Docker engine at an address; absent if None or on another host."""
    path = "" if address is None else urlsplit(address).path
    if not os.path.exists(path):  # noqa: ASYNC240, PTH110 - a socket of this host
        return DockerProbe()
    if not os.access(path, os.R_OK | os.W_OK):
        return DockerProbe("denied")
    try:
        info = await _docker_info(path)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return DockerProbe("silent", error=str(error) or f"nothing within {_DOCKER_LIMIT_S:g} s")
    toolkit = await toolkit_version()
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or () if isinstance(device, dict)]
    runtimes = tuple(info.get("Runtimes") or ())
    return DockerProbe("running", str(info.get("ServerVersion") or "?"), runtimes, tuple(devices), toolkit)


async def _docker_info(path: str) -> dict[str, Any]:
    async with (
        asyncio.timeout(_DOCKER_LIMIT_S),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as session,
        session.get("http://docker/info") as answer,
    ):
        text = b""
        async for piece in answer.content.iter_any():
            text += piece
            if len(text) > _ANSWER_MAX_BYTES:
                raise ValueError(f"its answer has more than {_ANSWER_MAX_BYTES} bytes")
        body = orjson.loads(text)
        if not isinstance(body, dict) or not answer.ok:
            raise ValueError(f"it answers {answer.status}")
        return body
