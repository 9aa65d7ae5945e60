"""The host's Docker engine. Each call has a deadline, and errors distinguish away from refused."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import orjson

from agent.decide.containers import AGENT_LABEL, has_tag, registry_of

if TYPE_CHECKING:
    from aiodocker import Docker

CALL_LIMIT_S: Final = 20.0
START_LIMIT_S: Final = 120.0  # a storage driver that copies is slow for a large image
WAIT_LIMIT_S: Final = 30.0
_CONNECT_LIMIT_S: Final = 5.0
_AWAY: Final = 900  # aiodocker: it cannot connect
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_HEADER_BYTES: Final = 8
_MOST_TEXT: Final = 1_000
_MOST_LINE_BYTES: Final = 2**20
_STREAM: Final = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_LIMIT_S)


class DockerAwayError(Exception):
    """Docker does not answer, so the state of containers is unknown."""


class DockerRefusalError(Exception):
    """Docker refuses; the message is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DockerEngine:
    """A client that connects at its first use. Each call may raise DockerAwayError or DockerRefusalError."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._client: Docker | None = None
        self._connector: aiohttp.BaseConnector | None = None

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(_CONNECT_LIMIT_S):
                    await client.close()
                    if self._connector is not None:
                        await self._connector.close()

    async def inspect(self, name: str) -> dict[str, Any] | None:
        """Docker's description of a container; None if no container has the name."""
        async with self._call(CALL_LIMIT_S) as docker:
            return await _unless_missing(docker.containers.container(name).show())

    async def list_of(self, owner: str) -> list[dict[str, Any]]:
        """Names and labels of an agent's containers, running or not."""
        async with self._call(CALL_LIMIT_S) as docker:
            filters = f'{{"label": ["{AGENT_LABEL}={owner}"]}}'
            # A container that is being removed may have no name any more.
            return [
                {"name": (listed["Names"] or [listed["Id"]])[0].lstrip("/"), "labels": listed["Labels"] or {}}
                for listed in await docker.containers.list(all=True, filters=filters)
            ]

    async def networks(self) -> list[dict[str, Any]]:
        async with self._call(CALL_LIMIT_S) as docker:
            return [dict(network) for network in await docker.networks.list()]

    async def create_network(self, config: Mapping[str, Any]) -> None:
        async with self._call(CALL_LIMIT_S) as docker:
            await docker.networks.create(dict(config))

    async def create(self, name: str, config: Mapping[str, Any]) -> None:
        async with self._call(START_LIMIT_S) as docker:
            await docker.containers.create(dict(config), name=name)

    async def start(self, name: str) -> None:
        async with self._call(START_LIMIT_S) as docker:
            await docker.containers.container(name).start()

    async def wait(self, name: str) -> None:
        """Returns when the container has ended or is gone, or after `WAIT_LIMIT_S`."""
        try:
            async with self._call(WAIT_LIMIT_S + CALL_LIMIT_S) as docker:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WAIT_LIMIT_S):
                        await docker.containers.container(name).wait(timeout=None)
        except DockerRefusalError as error:
            if error.status != _NOT_FOUND:
                raise

    async def signal(self, name: str, signal: str) -> None:
        """Does nothing if the container does not run."""
        try:
            async with self._call(CALL_LIMIT_S) as docker:
                await docker.containers.container(name).kill(signal=signal)
        except DockerRefusalError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise

    async def remove(self, name: str) -> None:
        """Kills and removes a container with its unnamed volumes; does nothing if it is gone."""
        try:
            async with self._call(START_LIMIT_S) as docker:
                await docker.containers.container(name).delete(force=True, v=True)
        except DockerRefusalError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):  # a conflict: it is being removed already
                raise

    async def image(self, reference: str) -> dict[str, Any] | None:
        """Docker's description of an image; None if this host lacks it."""
        async with self._call(CALL_LIMIT_S) as docker:
            return await _unless_missing(docker.images.inspect(reference))

    async def pull(
        self, reference: str, auth: Mapping[str, str] | None, stall_s: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Docker's messages while it pulls an image; TimeoutError if none came for `stall_s`.

        Closing the generator ends the pull; complete layers stay.
        """
        from aiodocker.utils import compose_auth_header  # noqa: PLC0415 - as in `_call`

        headers = {} if auth is None else {"X-Registry-Auth": compose_auth_header(dict(auth), registry_of(reference))}
        params = {"fromImage": reference, **({} if has_tag(reference) else {"tag": "latest"})}
        async with self._call(None) as docker:
            # Not aiodocker's pull, which leaves the connection open when it is cancelled: Docker would continue.
            url = await self._url(docker, "images/create")
            async with docker.session.post(url, params=params, headers=headers, timeout=_STREAM) as response:
                await _check(response)
                while True:
                    try:
                        async with asyncio.timeout(stall_s):
                            line = await response.content.readline()
                    except TimeoutError as error:
                        raise _StalledError from error
                    if not line:
                        return
                    message = orjson.loads(line)
                    if message.get("error"):
                        raise DockerRefusalError(0, str(message["error"]))
                    yield message

    async def log(self, name: str, since: str, silent_s: float) -> AsyncGenerator[bytes, None]:
        """A container's output in frames, each with its time in front; a huge frame is cut.

        It ends when the container has ended, or after `silent_s` without output: then the connection may be dead.
        `since` is in seconds since 1970.
        """
        async with self._call(None) as docker:
            # Not aiodocker's logs, which lose the borders of frames.
            url = await self._url(docker, f"containers/{name}/logs")
            params = {"stdout": "1", "stderr": "1", "follow": "1", "timestamps": "1", "since": since}
            with contextlib.suppress(asyncio.IncompleteReadError, _StalledError):
                # Docker may send the head of its response only with the first frame.
                async with _within(silent_s):
                    response = await docker.session.get(url, params=params, timeout=_STREAM)
                async with response:
                    await _check(response)
                    while True:
                        async with _within(silent_s):
                            frame = await _frame(response.content)
                        yield frame

    def _connected(self, docker: "type[Docker]") -> "Docker":
        """A client without a bound of connections: each container has two long calls, and other calls must not wait."""
        kind, _, path = self.address.partition("://")
        if kind != "unix":
            return docker(self.address, timeout=_STREAM)
        self._connector = aiohttp.UnixConnector(path, limit=0)
        return docker("unix://localhost", connector=self._connector, timeout=_STREAM)

    async def _url(self, docker: "Docker", path: str) -> str:
        """The address of a call that aiodocker lacks. It knows the API's version after its first call."""
        if docker.api_version == "auto":
            async with asyncio.timeout(CALL_LIMIT_S):
                await docker.containers.list(limit=1)
        return f"{docker.docker_host}/{docker.api_version}/{path}"

    @asynccontextmanager
    async def _call(self, limit_s: float | None) -> AsyncIterator["Docker"]:
        """Translates errors of the client. `limit_s` None: the caller sets limits."""
        from aiodocker import Docker, DockerError  # noqa: PLC0415 - an agent without containers does not load it

        try:
            if self._client is None:
                self._client = self._connected(Docker)
            async with asyncio.timeout(limit_s):
                yield self._client
        except DockerError as error:
            if error.status == _AWAY:
                raise DockerAwayError(error.message) from error
            raise DockerRefusalError(error.status, error.message) from error
        except _StalledError as error:
            raise TimeoutError from error
        except TimeoutError as error:
            raise DockerAwayError(f"no answer within {limit_s or _CONNECT_LIMIT_S:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise DockerAwayError(str(error) or type(error).__name__) from error
        except (LookupError, TypeError, AttributeError) as error:
            raise DockerAwayError(f"its answer makes no sense: {error!r}") from error


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.ok:
        return
    text = await response.text()
    with contextlib.suppress(ValueError, AttributeError):
        text = str(orjson.loads(text).get("message", text))
    raise DockerRefusalError(response.status, text[:_MOST_TEXT])


class _StalledError(Exception):
    """No data came in time."""


@asynccontextmanager
async def _within(limit_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise _StalledError from error


async def _frame(content: aiohttp.StreamReader) -> bytes:
    header = await content.readexactly(_HEADER_BYTES)
    length = int.from_bytes(header[4:], "big")
    frame = await content.readexactly(min(length, _MOST_LINE_BYTES))
    left = length - len(frame)
    while left:
        left -= len(await content.readexactly(min(left, _MOST_LINE_BYTES)))
    return frame


async def _unless_missing(call: Any) -> dict[str, Any] | None:
    from aiodocker import DockerError  # noqa: PLC0415 - as above

    try:
        answer: dict[str, Any] = await call
    except DockerError as error:
        if error.status == _NOT_FOUND:
            return None
        raise
    return answer
