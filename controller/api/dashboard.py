"""The dashboard's files below `/ui/`: read and compressed once, at the start.

No request names a file on the disk: a path is a key of a table. Every other path is a page of the dashboard, which
`index.html` draws.
"""

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

from controller.api.body import accepts_gzip
from controller.api.errors import ApiError
from controller.api.route import Access, Route

_INDEX: Final = "index.html"
_ASSETS: Final = "assets/"  # their names hold a hash of their content
_YEAR_S: Final = 31_536_000
_PAGE: Final = "/ui/"
_WORTH_COMPRESSING: Final = ("text/", "application/javascript", "application/json", "image/svg+xml")
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}


@dataclass(frozen=True, slots=True)
class _File:
    media: str
    lasting: bool
    bodies: dict[str, bytes]  # by content coding
    etag: str

    def etag_of(self, coding: str) -> str:
        return f"{self.etag}-gzip" if coding == "gzip" else self.etag


def _read(folder: Traversable, prefix: str = "") -> dict[str, _File]:
    files: dict[str, _File] = {}
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            files |= _read(entry, f"{name}/")
        else:
            files[name] = _file(name, entry.read_bytes())
    return files


def _file(name: str, body: bytes) -> _File:
    media = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if media in ("text/javascript", "application/javascript"):
        media = "text/javascript"
    bodies = {"identity": body}
    if media.startswith(_WORTH_COMPRESSING):
        bodies["gzip"] = gzip.compress(body, 9, mtime=0)
    return _File(media, name.startswith(_ASSETS), bodies, hashlib.sha256(body).hexdigest()[:32])


FILES: Final = _read(files("controller") / "dashboard" / "files")


async def get(request: web.Request) -> web.Response:
    name = request.match_info.get("path", "")
    file = FILES.get(name)
    if file is None:
        if name.startswith(_ASSETS):  # a file of another version; browsers would run a page as a script
            raise ApiError(404, "not_found", f"no file of the dashboard is named {name[:200]!r}; reload the page")
        file = FILES[_INDEX]
    accepted = accepts_gzip(request.headers.get("Accept-Encoding", ""))
    coding = "gzip" if accepted and "gzip" in file.bodies else "identity"
    etag = file.etag_of(coding)
    caching = f"public, max-age={_YEAR_S}, immutable" if file.lasting else "no-cache"
    headers = {**_HEADERS, "ETag": f'"{etag}"', "Cache-Control": caching}
    if any(known.value in (etag, "*") for known in request.if_none_match or ()):
        return web.Response(status=304, headers=headers)
    if coding == "gzip":
        headers["Content-Encoding"] = "gzip"
    charset = "utf-8" if file.media.startswith("text/") else None
    return web.Response(body=file.bodies[coding], headers=headers, content_type=file.media, charset=charset)


async def to_dashboard(request: web.Request) -> web.Response:
    """Redirects browsers to the dashboard."""
    if request.path == "/" and "text/html" not in request.headers.get("Accept", ""):
        raise ApiError(404, "not_found", "the API is below /api/v1, models below /v1, the dashboard at /ui/")
    return web.Response(status=302, headers={**_HEADERS, "Location": _PAGE, "Vary": "Accept"})


ROUTES: Final = (
    Route("GET", "/", to_dashboard, Access.OPEN, "Lead browsers to the dashboard", "dashboard", status=302,
          media="text/html", from_memory=True),
    Route("GET", "/ui", to_dashboard, Access.OPEN, "Lead browsers to the dashboard", "dashboard", status=302,
          media="text/html", from_memory=True),
    Route("GET", "/ui/{path:.*}", get, Access.OPEN, "The dashboard", "dashboard", media="text/html", from_memory=True),
)  # fmt: skip
