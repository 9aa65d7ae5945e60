"""Probes an engine on its loopback port."""

import asyncio
import errno
from typing import Final

import aiohttp
import orjson

from http1.client import read_at_most
from schemas.wire import ProbeOrder

_CONNECT_LIMIT_S = 2.0
_PROXY_LIMIT_S: Final = 0.5
_MOST_BYTES: Final = 2**20
_OK, _ERROR, _BUSY = 200, 500, 503
_CLOSE: Final = {"Connection": "close"}
# This agent or host has run out of something: it says nothing about the engine.
_OUR_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})


class Prober:
    """Probes all engines. Each probe opens a new connection: a kept one would hide a dead listener."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def probe(self, probe: ProbeOrder | None, port: int, *, is_proxied: bool = False) -> bool | None:
        """Whether an HTTP GET answers 2xx; without `probe`, whether the port accepts a connection. None: unknown.

        `is_proxied`: connections are accepted before the engine listens, and then closed.
        """
        if probe is None:
            return await _connects(port, is_proxied=is_proxied)
        try:
            async with self._session.get(
                f"http://127.0.0.1:{port}{probe.path}",
                timeout=aiohttp.ClientTimeout(total=probe.timeout_s),
                allow_redirects=False,
                headers={"Connection": "close"},
            ) as response:
                return 200 <= response.status < 300  # noqa: PLR2004 - 2xx
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return _of(error)

    async def generate(self, port: int, timeout_s: float) -> bool | None:
        """Whether the engine generates one token in time. None: unknown, as where it is busy or has no completions.

        No redirect is followed: an engine does not choose what else the agent asks.
        """
        base, timeout = f"http://127.0.0.1:{port}", aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.get(
                    f"{base}/v1/models", timeout=timeout, headers=_CLOSE, allow_redirects=False
                ) as listed:
                    model = _first_model(await read_at_most(listed, _MOST_BYTES)) if listed.status == _OK else None
                if model is None:
                    return None
                body = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}
                async with self._session.post(
                    f"{base}/v1/completions", json=body, timeout=timeout, headers=_CLOSE, allow_redirects=False
                ) as got:
                    await read_at_most(got, _MOST_BYTES)
                    # Refusals say nothing: it offers no completions, wants other fields, or has a full queue.
                    return True if got.status == _OK else None if got.status < _ERROR or got.status == _BUSY else False
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return _of(error)


def _first_model(text: bytes) -> str | None:
    """The first name in a list of models."""
    found = orjson.loads(text)
    models = found.get("data") if isinstance(found, dict) else None
    first = models[0] if isinstance(models, list) and models else None
    name = first.get("id") if isinstance(first, dict) else None
    return name if isinstance(name, str) else None


async def _connects(port: int, *, is_proxied: bool) -> bool | None:
    try:
        async with asyncio.timeout(_CONNECT_LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                return not (is_proxied and await _ends_at_once(reader))
            finally:
                writer.close()
                await writer.wait_closed()
    except (OSError, TimeoutError) as error:
        return _of(error)


async def _ends_at_once(reader: asyncio.StreamReader) -> bool:
    """Whether the other side closes, as a proxy does which finds that its own side does not listen."""
    try:
        async with asyncio.timeout(_PROXY_LIMIT_S):
            return not await reader.read(1)
    except TimeoutError:
        return False


def _of(error: Exception) -> bool | None:
    return None if isinstance(error, OSError) and error.errno in _OUR_OWN else False
