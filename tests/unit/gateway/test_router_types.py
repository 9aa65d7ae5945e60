"""Which types of bodies the router admits: none that an engine might read otherwise than the gateway does."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.admission.router import Router
from http1.forwarded import TrustedProxies
from http1.protocol.handler import Handler
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection
from support.standins.exchange_world import World, settle

CHAT, FORMS = "/v1/chat/completions", "/v1/audio/transcriptions"
JSON = b'{"model": "m"}'
FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'
FORM_TYPE = "Content-Type: multipart/form-data; boundary=b"
URL_ENCODED = "Content-Type: application/x-www-form-urlencoded"


class FrontWorld(World):
    """Its client's requests come through the router."""

    def __init__(self) -> None:
        super().__init__()
        keys: Any = self.models.keys
        keys.owner = lambda _: self.owner
        controller: Any = None  # nothing is passed on
        self.router = Router(self.models, controller, {}, TrustedProxies())

    def handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        return self.router.handle(head, connection)


async def ask(path: str, body: bytes, *fields: str) -> tuple[bytes, int]:
    """What the client reads, and at how many engines the request was."""
    lines = (f"POST {path} HTTP/1.1", "Host: a", "Authorization: Bearer gpw_x", f"Content-Length: {len(body)}", *fields)
    with capture_logs():
        world = FrontWorld()
        world.transport.receive("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body)
        await settle()
        asked = len(world.pool.made)
        world.transport.lose()
        await settle()
    return world.transport.written, asked


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        (FORMS, FORM, [FORM_TYPE]),
        (FORMS, FORM, [FORM_TYPE.upper().replace("BOUNDARY=B", "boundary=b")]),
        (FORMS, JSON, ["Content-Type: application/json"]),
        (FORMS, JSON, ["Content-Type: Application/JSON ; charset=utf-8"]),
        (CHAT, JSON, []),
        (CHAT, JSON, [URL_ENCODED]),
        (CHAT, JSON, ["Content-Type: application/json", "Content-Encoding: identity"]),
    ],
)
async def test_what_clients_rely_on_passes(path: str, body: bytes, fields: list[str]) -> None:
    assert await ask(path, body, *fields) == (b"", 1)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "", "multipart/mixed; boundary=b"])
@pytest.mark.parametrize("body", [JSON, JSON + b"&model=other", FORM])
async def test_paths_of_forms_take_forms_and_json_alone(kind: str, body: bytes) -> None:
    written, asked = await ask(FORMS, body, *([f"Content-Type: {kind}"] if kind else []))
    assert written.startswith(b"HTTP/1.1 415 ")
    assert b'"code":"unsupported_type"' in written
    assert asked == 0


@pytest.mark.parametrize(
    ("path", "body", "fields", "words"),
    [
        (FORMS, JSON, ["Content-Type: application/json", FORM_TYPE], b"Content-Type: must be given once"),
        (FORMS, FORM, [FORM_TYPE, "Content-Type: application/json"], b"Content-Type: must be given once"),
        (FORMS, FORM, [FORM_TYPE, FORM_TYPE.replace("=b", "=c")], b"Content-Type: must be given once"),
        (FORMS, FORM, [FORM_TYPE + "; boundary=c"], b"takes one boundary"),
        (CHAT, JSON, [URL_ENCODED, URL_ENCODED], b"Content-Type: must be given once"),
        (CHAT, JSON, ["Content-Encoding: identity", "Content-Encoding: gzip"], b"Content-Encoding: must be given once"),
        (CHAT, JSON, ["Content-Type: application/json; charset=utf-8; charset=utf-16"], b"charset must be utf-8"),
    ],
)
async def test_types_that_parsers_may_read_otherwise_are_refused(
    path: str, body: bytes, fields: list[str], words: bytes
) -> None:
    written, asked = await ask(path, body, *fields)
    assert written.startswith(b"HTTP/1.1 400 ")
    assert words in written
    assert asked == 0
