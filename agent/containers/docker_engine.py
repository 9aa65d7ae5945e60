"""The host's Docker engine. Each call has a deadline; an engine that is away is told from one that refuses."""

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
START_LIMIT_S: Final = 120.0  # a storage driver that copies takes its time for a large image
WAIT_LIMIT_S: Final = 30.0
_CONNECT_LIMIT_S: Final = 5.0
_AWAY: Final = 900  # aiodocker: it cannot connect
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_HEADER_BYTES: Final = 8
_MOST_WORDS: Final = 1_000
_MOST_LINE_BYTES: Final = 2**20
_STREAM: Final = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_LIMIT_S)


class DockerAwayError(Exception):
    """Docker does not answer: what it runs is unknown."""


class DockerRefusalError(Exception):
    """Docker answers, and does not do it; the message is its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DockerEngine:
    """A client that connects when it is first needed.

    Each call raises DockerAwayError if Docker does not answer, and DockerRefusalError if it refuses.
    """

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
        """What is known of a container; None: there is none of that name."""
        async with self._call(CALL_LIMIT_S) as docker:
            return await _unless_missing(docker.containers.container(name).show())

    async def list_of(self, owner: str) -> list[dict[str, Any]]:
        """The names and labels of an agent's containers, whether they run or not."""
        async with self._call(CALL_LIMIT_S) as docker:
            filters = f'{{"label": ["{AGENT_LABEL}={owner}"]}}'
            found = await docker.containers.list(all=True, filters=filters)
            # One that is being removed may have no name any more.
            return [
                {"name": (one["Names"] or [one["Id"]])[0].lstrip("/"), "labels": one["Labels"] or {}} for one in found
            ]

    async def networks(self) -> list[dict[str, Any]]:
        async with self._call(CALL_LIMIT_S) as docker:
            return [dict(one) for one in await docker.networks.list()]

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
        """Returns when it has ended or is gone, or after `WAIT_LIMIT_S`."""
        try:
            async with self._call(WAIT_LIMIT_S + CALL_LIMIT_S) as docker:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(WAIT_LIMIT_S):
                        await docker.containers.container(name).wait(timeout=None)
        except DockerRefusalError as error:
            if error.status != _NOT_FOUND:
                raise

    async def signal(self, name: str, signal: str) -> None:
        """Sends it a signal; nothing happens if it does not run."""
        try:
            async with self._call(CALL_LIMIT_S) as docker:
                await docker.containers.container(name).kill(signal=signal)
        except DockerRefusalError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):
                raise

    async def remove(self, name: str) -> None:
        """Kills and removes it with its unnamed volumes; nothing happens if it is gone."""
        try:
            async with self._call(START_LIMIT_S) as docker:
                await docker.containers.container(name).delete(force=True, v=True)
        except DockerRefusalError as error:
            if error.status not in (_NOT_FOUND, _CONFLICT):  # a conflict: it is being removed already
                raise

    async def image(self, reference: str) -> dict[str, Any] | None:
        """What is known of an image of the host; None: it is not here."""
        async with self._call(CALL_LIMIT_S) as docker:
            return await _unless_missing(docker.images.inspect(reference))

    async def pull(
        self, reference: str, auth: Mapping[str, str] | None, stall_s: float
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Docker's words while it fetches an image. Closing it ends the fetch; layers that are whole stay.

        Raises:
            TimeoutError: it has sent nothing for `stall_s`.
        """
        from aiodocker.utils import compose_auth_header  # noqa: PLC0415 - as in `_call`

        headers = {} if auth is None else {"X-Registry-Auth": compose_auth_header(dict(auth), registry_of(reference))}
        params = {"fromImage": reference, **({} if has_tag(reference) else {"tag": "latest"})}
        async with self._call(None) as docker:
            # aiodocker's own pull leaves the connection open when it is given up, and Docker would continue.
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
                    word = orjson.loads(line)
                    if word.get("error"):
                        raise DockerRefusalError(0, str(word["error"]))
                    yield word

    async def log(self, name: str, since: str, silent_s: float) -> AsyncGenerator[bytes, None]:
        """What a container prints, each piece with the time before it; of a huge piece only the beginning.

        It ends when the container has ended, or when nothing has come for `silent_s`: then the connection may be dead.

        Args:
            name: of the container.
            since: seconds since 1970; pieces from then on come.
            silent_s: seconds.
        """
        async with self._call(None) as docker:
            # aiodocker's own reading of logs cannot tell where a piece ends.
            url = await self._url(docker, f"containers/{name}/logs")
            params = {"stdout": "1", "stderr": "1", "follow": "1", "timestamps": "1", "since": since}
            with contextlib.suppress(asyncio.IncompleteReadError, _StalledError):
                # Docker may send the head of its answer only with the first piece.
                async with _within(silent_s):
                    response = await docker.session.get(url, params=params, timeout=_STREAM)
                async with response:
                    await _check(response)
                    while True:
                        async with _within(silent_s):
                            piece = await _piece(response.content)
                        yield piece

    def _connected(self, docker: "type[Docker]") -> "Docker":
        """A client without a bound of connections: each container has two calls that last, and others must not wait."""
        kind, _, path = self.address.partition("://")
        if kind != "unix":
            return docker(self.address, timeout=_STREAM)
        self._connector = aiohttp.UnixConnector(path, limit=0)
        return docker("unix://localhost", connector=self._connector, timeout=_STREAM)

    async def _url(self, docker: "Docker", path: str) -> str:
        """The address of a call that aiodocker has not. It knows the version of the API after the first call."""
        if docker.api_version == "auto":
            async with asyncio.timeout(CALL_LIMIT_S):
                await docker.containers.list(limit=1)
        return f"{docker.docker_host}/{docker.api_version}/{path}"

    @asynccontextmanager
    async def _call(self, limit_s: float | None) -> AsyncIterator["Docker"]:
        """A client; its errors become ours. `limit_s` None: the caller has limits of its own."""
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
    raise DockerRefusalError(response.status, text[:_MOST_WORDS])


class _StalledError(Exception):
    """Nothing was said for too long."""


@asynccontextmanager
async def _within(limit_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise _StalledError from error


async def _piece(content: aiohttp.StreamReader) -> bytes:
    header = await content.readexactly(_HEADER_BYTES)
    length = int.from_bytes(header[4:], "big")
    piece = await content.readexactly(min(length, _MOST_LINE_BYTES))
    left = length - len(piece)
    while left:
        left -= len(await content.readexactly(min(left, _MOST_LINE_BYTES)))
    return piece


async def _unless_missing(asked: Any) -> dict[str, Any] | None:
    from aiodocker import DockerError  # noqa: PLC0415 - as above

    try:
        answer: dict[str, Any] = await asked
    except DockerError as error:
        if error.status == _NOT_FOUND:
            return None
        raise
    return answer
