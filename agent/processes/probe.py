"""Probes an engine on its loopback port."""

import asyncio
import errno
from functools import partial
from typing import Final
from urllib.parse import quote

import orjson

from http1.fetch import FetchError, fetch
from http1.protocol.client import Pool
from http1.protocol.heads import ResponseHead
from schemas.wire import ProbeOrder

_CONNECT_LIMIT_S = 2.0
_PROXY_LIMIT_S: Final = 0.5
_MOST_BYTES: Final = 2**20
_OK, _ERROR, _BUSY = 200, 500, 503
_IN_TARGETS: Final = "/?#[]@!$&'()*+,;=%:~"
# Resources of this agent or host are exhausted: the engine's state is unknown.
_OUR_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})


class Prober:
    """Probes all engines. Each probe opens a new connection: a kept one would hide a dead listener."""

    async def probe(self, probe: ProbeOrder | None, port: int, *, is_proxied: bool = False) -> bool | None:
        """Whether a GET answers 2xx; without `probe`, whether the port accepts a connection. None: unknown.

        `is_proxied`: a proxy accepts connections before the engine listens, and then closes them.
        """
        if probe is None:
            return await _connects(port, is_proxied=is_proxied)
        try:
            head, _ = await request_engine(port, probe.path, limit_s=probe.timeout_s, most_bytes=1)
        except FetchError as error:
            return _of(error)
        return 200 <= head.status < 300  # noqa: PLR2004 - 2xx

    async def generate(self, port: int, timeout_s: float) -> bool | None:
        """Whether the engine generates a token in time. None: unknown, such as if it is busy or has no completions."""
        try:
            async with asyncio.timeout(timeout_s):
                listed, models = await request_engine(port, "/v1/models", limit_s=timeout_s, most_bytes=_MOST_BYTES)
                model = _first_model(models) if listed.status == _OK else None
                if model is None:
                    return None
                body = orjson.dumps({"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0})
                got, _ = await request_engine(port, "/v1/completions", body, limit_s=timeout_s, most_bytes=_MOST_BYTES)
                # A refusal shows nothing: it offers no completions, requires other fields, or has a full queue.
                return True if got.status == _OK else None if got.status < _ERROR or got.status == _BUSY else False
        except (FetchError, TimeoutError, ValueError) as error:
            return _of(error)


async def request_engine(
    port: int, path: str, body: bytes = b"", *, limit_s: float, most_bytes: int
) -> tuple[ResponseHead, bytes]:
    """Head and body of an engine's answer to a GET, or to a POST of JSON. Raises FetchError.

    Redirects are not followed: an engine does not choose the agent's requests.
    """
    # `identity`, since answers are not decompressed: vLLM and SGLang compress their metrics by default.
    fields = [(b"host", b"127.0.0.1:%d" % port), (b"accept-encoding", b"identity")]
    if body:
        fields.append((b"content-type", b"application/json"))
    connect = partial(Pool().connect, ("127.0.0.1", port))
    target = quote(path, safe=_IN_TARGETS).encode()
    method = b"POST" if body else b"GET"
    return await fetch(connect, method, target, fields, body, limit_s=limit_s, most_bytes=most_bytes)


def _first_model(text: bytes) -> str | None:
    """The first name in a list of models."""
    listed = orjson.loads(text)
    models = listed.get("data") if isinstance(listed, dict) else None
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
    """Whether the other side closes at once, as a proxy whose engine does not listen."""
    try:
        async with asyncio.timeout(_PROXY_LIMIT_S):
            return not await reader.read(1)
    except TimeoutError:
        return False


def _of(error: Exception) -> bool | None:
    return None if isinstance(error, OSError | FetchError) and error.errno in _OUR_OWN else False
