"""A small registry over real HTTP on loopback, which a Docker engine may use without TLS. It serves one image."""

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from support.docker.images import empty_layer
from support.loopback import listening

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
NAME = "team/engine"
_PIECE = 65_536


class Registry:
    """One image `team/engine:1`, whose layer may come slowly, or stop coming."""

    def __init__(self, *, filler: int = 0) -> None:
        layer = empty_layer(filler=filler)
        packed = gzip.compress(layer, compresslevel=1)
        config = orjson.dumps(
            {
                "architecture": "amd64", "os": "linux", "config": {},
                "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            }
        )  # fmt: skip
        manifest = orjson.dumps(
            {
                "schemaVersion": 2, "mediaType": MANIFEST,
                "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "size": len(config),
                           "digest": digest(config)},
                "layers": [{"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(packed),
                            "digest": digest(packed)}],
            }
        )  # fmt: skip
        self.digest = digest(manifest)
        self.address = ""
        self.layer_bytes = len(packed)
        self.sent = 0
        self.pause_s = 0.0  # after each piece of the layer
        self.stall_at: int | None = None  # bytes of the layer after which nothing comes
        self.let_go = asyncio.Event()  # the layer's connection ended before its end
        self.users: list[str] = []
        self.asks_login = False
        self.tag = "1"  # of the image; another one: nothing has the old tag any more
        self._manifest = manifest
        self._layer = digest(packed)
        self._blobs = {digest(config): config, self._layer: packed}

    @property
    def image(self) -> str:
        """A reference to its image."""
        return f"{self.address}/{NAME}:1"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Everything under /v2/."""
        self.users.append(request.headers.get("Authorization", ""))
        if self.asks_login and not self.users[-1]:
            return web.json_response({}, status=401, headers={"WWW-Authenticate": 'Basic realm="team"'})
        path = request.path.removeprefix("/v2/")
        if not path:
            return web.json_response({})
        name, _, what = path.rpartition("/")
        if name == f"{NAME}/manifests" and what in (self.tag, self.digest):
            headers = {"Docker-Content-Digest": self.digest, "Content-Type": MANIFEST}
            return web.Response(body=self._manifest, headers=headers)
        if name == f"{NAME}/blobs" and what in self._blobs:
            return await self._blob(request, what)
        error = {"code": "MANIFEST_UNKNOWN", "message": "manifest unknown", "detail": {}}
        return web.json_response({"errors": [error]}, status=404)

    async def _blob(self, request: web.Request, what: str) -> web.StreamResponse:
        data = self._blobs[what]
        if what != self._layer or request.method == "HEAD":
            return web.Response(body=data)
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await response.prepare(request)
        try:
            for start in range(0, len(data), _PIECE):
                if self.stall_at is not None and start >= self.stall_at:
                    await asyncio.sleep(60)
                await response.write(data[start : start + _PIECE])
                self.sent = start + _PIECE
                await asyncio.sleep(self.pause_s)
        except (ConnectionError, asyncio.CancelledError):
            self.let_go.set()
            raise
        return response


def digest(data: bytes) -> str:
    """As registries name what they keep."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@asynccontextmanager
async def running_registry(**fields: Any) -> AsyncIterator[Registry]:
    """A registry that serves."""
    registry = Registry(**fields)
    app = web.Application()
    app.router.add_route("*", "/v2/{path:.*}", registry.answer)
    async with listening(app, shutdown_s=0.1, cancel_handlers=True) as address:
        registry.address = address
        yield registry
