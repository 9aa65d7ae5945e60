"""The dashboard's files: open, strict headers, compressed, cached, and never anything but those files."""

import re

import aiohttp
import pytest
from yarl import URL

from controller.api.dashboard import FILES
from support.leading.served_api import ServedApi

COMPRESSED_LIMIT = 150 * 1024


async def get(api: ServedApi, path: str, **headers: str) -> tuple[aiohttp.ClientResponse, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession(auto_decompress=False, headers={"Accept-Encoding": "identity"}) as client:
        url = URL(api.url + path, encoded=True)
        answer = await client.get(url, headers=named, allow_redirects=False)
        return answer, await answer.read()


async def test_a_browser_is_led_to_it(api: ServedApi) -> None:
    answer, _ = await get(api, "/", Accept="text/html,*/*")
    assert (answer.status, answer.headers["Location"]) == (302, "/ui/")
    answer, _ = await get(api, "/", Accept="*/*")
    assert answer.status == 404


@pytest.mark.parametrize(
    "path", ["/ui/", "/ui/deployments/chat", "/ui/instances/x-1", "/ui/..%2f..%2f..%2fetc%2fpasswd"]
)
async def test_every_page_is_the_index(api: ServedApi, path: str) -> None:
    answer, body = await get(api, path)
    assert (answer.status, answer.content_type) == (200, "text/html")
    assert body == FILES["index.html"].bodies["identity"]
    policy = answer.headers["Content-Security-Policy"]
    for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Cache-Control"] == "no-cache"


async def test_files_are_compressed_and_cached(api: ServedApi) -> None:
    for name in FILES:
        plain, _ = await get(api, f"/ui/{name}", Accept_Encoding="identity")
        small, body = await get(api, f"/ui/{name}", Accept_Encoding="gzip, br")
        for answer, coding in ((plain, "identity"), (small, "gzip")):
            again, nothing = await get(api, f"/ui/{name}", If_None_Match=answer.headers["ETag"], Accept_Encoding=coding)
            assert (again.status, nothing) == (304, b""), name
        if "gzip" in FILES[name].bodies:
            assert small.headers["Content-Encoding"] == "gzip"
            assert small.headers["ETag"] != plain.headers["ETag"]
            assert body == FILES[name].bodies["gzip"]
    assert sum(len(file.bodies.get("gzip", file.bodies["identity"])) for file in FILES.values()) <= COMPRESSED_LIMIT


async def test_a_missing_asset_gives_no_page(api: ServedApi) -> None:
    answer, _ = await get(api, "/ui/assets/index-00000000.js")
    assert answer.status == 404


def test_the_index_needs_no_other_server() -> None:
    index = FILES["index.html"].bodies["identity"].decode()
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", index)
