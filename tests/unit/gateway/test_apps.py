"""Requests below `/apps`: what a custom server gets of them, what its client gets back, and WebSockets."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.live.endpoints import Endpoint
from controller.live.key_ring import Principal
from gateway.admission.router import Router
from gateway.requests.states import State
from http1.forwarded import TrustedProxies
from http1.protocol.handler import Handler
from http1.protocol.heads import RequestHead
from http1.protocol.server_connection import ServerConnection
from schemas.key_limits import KeyLimits
from schemas.manifest.serving import ServingLimits
from support.builders.models import model
from support.standins.crashes import Crashes
from support.standins.exchange_world import DIED, World, settle

HANDSHAKE = (
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: a\r\n"
)
SWITCHED = (
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\nset-cookie: a=b\r\n"
    b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nsec-websocket-protocol: a\r\n\r\n"
)
BEARER = "Authorization: Bearer gpw_x\r\n"


class AppWorld(World):
    """A custom server with paths of its own, behind the router."""

    def __init__(self, csp: str = "sandbox", *, apps: bool = True, paths: tuple[str, ...] = ("/public",)) -> None:
        super().__init__()
        serving: dict[str, Any] = {"queue": {"length": 0}, "silence_timeout": "60s"}
        if apps:
            serving["apps"] = {"paths": paths, "csp": csp}
        limits = ServingLimits.model_validate(serving)
        self.table.update({"m": model("m", serving=serving)}, [Endpoint("m", "a", "127.0.0.1:1", "s", limits)])
        keys: Any = self.models.keys
        keys.owner = lambda _: self.owner
        keys.known = lambda _: self.owner if self.valid else None
        self.valid = True
        self.router = Router(self.models, None, {}, TrustedProxies())  # type: ignore[arg-type] # nothing is passed on

    def handle(self, head: RequestHead, connection: ServerConnection) -> Handler:
        handler = self.router.handle(head, connection)
        self.exchanges += [one for one in self.models.under_way if one not in self.exchanges]  # type: ignore[misc]
        return handler

    async def ask(
        self, target: str = "/apps/m/public/x", fields: str = BEARER, body: str = "", method: str = "GET"
    ) -> bytes:
        """What the server's agent gets."""
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        self.transport.receive(f"{method} {target} HTTP/1.1\r\nHost: a\r\n{fields}{length}\r\n{body}".encode())
        await settle()
        return b"".join(bytes(one.written) for one in self.pool.made)

    @property
    def read(self) -> bytes:
        """What the client gets."""
        return bytes(self.transport.written)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
@pytest.mark.parametrize("body", ["", "x" * 10_000])
async def test_any_method_and_body_reach_the_server_without_the_prefix(method: str, body: str) -> None:
    world = AppWorld()
    cookies = "Cookie: gpuward_session=x; a=b\r\nX-Own: 1\r\n"
    sent = await world.ask("/apps/m/public/a%20b?c=%2F..", BEARER + cookies, body, method)
    assert sent.startswith(f"{method} /engines/a/public/a%20b?c=%2F.. HTTP/1.1\r\n".encode())
    assert sent.endswith(b"\r\n\r\n" + body.encode())
    assert b"x-own: 1" in sent
    assert b"cookie" not in sent.lower()
    assert b"gpw_x" not in sent
    answer = b"" if method == "HEAD" else b"hi"
    world.answer(b"HTTP/1.1 201 x\r\nset-cookie: a=b\r\nlink: </x>\r\nallow: GET\r\naccept-ranges: bytes\r\n"
                 b"content-length: 2\r\n\r\n" + answer)  # fmt: skip
    await settle()
    head, _, got = world.read.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 201")
    assert got == answer
    assert b"content-length: 2" in head
    assert b"set-cookie" not in head
    for line in (b"link: </x>", b"allow: GET", b"accept-ranges: bytes", b"content-security-policy: sandbox"):
        assert line in head
    world.check()


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("/docs?a", "/apps/m/docs?a"),
        ("http://127.0.0.1:8123/x", "/apps/m/x"),
        ("http://localhost:8123", "/apps/m"),
        ("next", "next"),
        ("//elsewhere/x", "//elsewhere/x"),
        ("https://elsewhere/x", "https://elsewhere/x"),
        ("http://127.0.0.1.elsewhere/x", "http://127.0.0.1.elsewhere/x"),
        ("http://127.0.0.1:80@elsewhere/x", "http://127.0.0.1:80@elsewhere/x"),
    ],
)
async def test_a_redirect_within_the_server_stays_below_its_prefix(given: str, shown: str) -> None:
    world = AppWorld()
    await world.ask()
    world.answer(f"HTTP/1.1 307 x\r\nlocation: {given}\r\ncontent-length: 0\r\n\r\n".encode())
    await settle()
    assert f"\r\nlocation: {shown}\r\n".encode() in world.read
    world.check()


@pytest.mark.parametrize(
    "fields", ["", "Cookie: gpuward_session=abc\r\nAccept: text/html\r\n", "Authorization: Basic eA==\r\n"]
)
@pytest.mark.parametrize("apps", [True, False])
async def test_a_browser_without_a_key_is_refused_before_all_else(fields: str, apps: bool) -> None:
    for target in ("/apps/m/public/x", "/apps/m/secret", "/apps/other/x", "/apps/m/public/../x"):
        world = AppWorld(apps=apps)
        assert await world.ask(target, fields) == b""
        assert world.read.startswith(b"HTTP/1.1 401")
        assert b"are for programs" in world.read
        assert b"content-security-policy: sandbox" in world.read
        world.check()


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/apps/m/secret", 404),
        ("/apps/m/publicity", 404),
        ("/apps/m", 404),
        ("/apps/other/public/x", 404),
        ("/apps/m/public/../secret", 400),
        ("/apps/m/public/%2e%2e/secret", 400),
        ("/apps/m/public/%252e%252e%252fsecret", 400),
        ("/apps/m/public%2fx", 400),
        ("/apps/m/public/x%5c..", 400),
        ("/apps/m/public/x?a=%00", 400),
        ("/apps/m//public/x", 400),
    ],
)
async def test_other_paths_do_not_reach_the_server(target: str, status: int) -> None:
    world = AppWorld()
    assert await world.ask(target) == b""
    assert world.read.startswith(b"HTTP/1.1 %d" % status)
    world.check()


@pytest.mark.parametrize(
    ("owner", "status"),
    [
        (Principal("k", "k", "viewer"), 403),
        (Principal("k", "k", "inference", limits=KeyLimits(models=("other*",))), 404),
    ],
)
async def test_keys_reach_what_they_may_ask_for(owner: Principal, status: int) -> None:
    world = AppWorld()
    world.owner = owner
    assert await world.ask() == b""
    assert world.read.startswith(b"HTTP/1.1 %d" % status)
    world.owner = replace(owner, role="inference", limits=KeyLimits())
    world = AppWorld()
    assert (await world.ask()).startswith(b"GET /engines/a/public/x ")


async def test_without_the_field_nothing_is_reachable() -> None:
    world = AppWorld(apps=False)
    assert await world.ask() == b""
    assert world.read.startswith(b"HTTP/1.1 404")


async def test_answers_have_no_policy_where_the_manifest_wants_none() -> None:
    world = AppWorld("none")
    await world.ask()
    world.answer(b"HTTP/1.1 200 x\r\ncontent-length: 2\r\n\r\nhi")
    await settle()
    assert world.read.endswith(b"hi")
    assert b"content-security-policy" not in world.read


async def test_a_stream_passes_as_it_comes_and_without_comments() -> None:
    world = AppWorld()
    await world.ask()
    (exchange,) = world.exchanges
    exchange.overdue(exchange.arrived + 50)
    assert world.read == b""
    world.answer(
        b"HTTP/1.1 200 x\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n4\r\ndata\r\n"
    )
    await settle()
    assert world.read.endswith(b"4\r\ndata\r\n")
    assert b"x-accel-buffering: no" in world.read
    before = world.read
    exchange.overdue(exchange.deadline - 1)
    world.answer(b"3\r\n: x\r\n0\r\n\r\n")
    await settle()
    assert world.read == before + b"3\r\n: x\r\n0\r\n\r\n"
    world.check()


async def opened() -> AppWorld:
    world = AppWorld()
    sent = await world.ask(fields=BEARER + HANDSHAKE)
    for line in (b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="):
        assert line in sent.replace(b"Upgrade", b"upgrade")
    assert b"content-length" not in sent, "some servers refuse a handshake with one"
    world.answer(SWITCHED + b"early")
    await settle()
    head, _, rest = world.read.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101")
    for line in (
        b"upgrade: websocket",
        b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        b"sec-websocket-protocol: a",
    ):
        assert line in head
    assert b"set-cookie" not in head
    assert rest == b"early"
    return world


async def test_a_websocket_passes_bytes_both_ways_until_its_client_leaves() -> None:
    world = await opened()
    assert world.engine is not None
    world.transport.receive(b"\x81\x85ping!")
    world.answer(b"\x81\x04pong")
    await settle()
    assert world.engine.written.endswith(b"\x81\x85ping!")
    assert world.read.endswith(b"\x81\x04pong")
    world.check()
    world.transport.lose()
    await settle()
    assert world.engine is None, "the server's side ends with it"
    assert world.exchanges[0].state is State.DONE
    world.check()


async def test_a_websocket_ends_with_its_server() -> None:
    world = await opened()
    assert world.engine is not None
    world.engine.receive_eof()
    await settle()
    assert world.transport.closing
    assert world.exchanges[0].state is State.DONE
    world.check()


async def test_a_websocket_ends_with_its_key() -> None:
    world = await opened()
    (exchange,) = world.exchanges
    exchange.overdue(exchange.arrived + 3)
    assert not world.transport.closing
    world.valid = False
    exchange.overdue(exchange.arrived + 6)
    assert world.transport.closing
    world.check()


async def test_a_silent_websocket_ends_and_an_active_one_does_not() -> None:
    world = await opened()
    (exchange,) = world.exchanges
    exchange.overdue(exchange.arrived + 59)
    assert not world.transport.closing
    exchange.overdue(exchange.deadline)
    assert world.transport.closing
    world.check()


async def test_a_client_that_takes_nothing_holds_the_server_up() -> None:
    world = await opened()
    assert world.engine is not None
    world.block(on=True)
    assert not world.engine.reading
    world.block(on=False)
    assert world.engine.reading
    world.engine.block()
    assert not world.transport.reading
    world.engine.unblock()
    assert world.transport.reading


async def test_a_server_that_does_not_switch_answers() -> None:
    world = AppWorld()
    await world.ask(fields=BEARER + HANDSHAKE)
    world.answer(b"HTTP/1.1 426 x\r\nsec-websocket-version: 13\r\ncontent-length: 2\r\n\r\nno")
    await settle()
    assert world.read.startswith(b"HTTP/1.1 426")
    assert b"sec-websocket-version: 13" in world.read
    assert world.read.endswith(b"no")
    world.check()


async def test_all_ends_when_the_gateway_stops() -> None:
    world = await opened()
    world.exchanges[0].end_for_stop()
    assert world.transport.closing
    world.check()


async def asks_again(first: tuple[str, str, str], then: tuple[str, str, str]) -> bytes:
    """What the client gets for a request once another one was alone at a server that crashed."""
    world, crashes = AppWorld(), Crashes()
    world.models = replace(world.models, crashes=crashes)
    world.router = Router(world.models, None, {}, TrustedProxies())  # type: ignore[arg-type] # nothing is passed on
    await world.ask(first[1], body=first[2], method=first[0])
    while world.engine is None:  # a long body is read in a thread
        await settle()
    world.answer(DIED)
    while world.models.under_way:
        await settle()
    before = len(world.read)
    await world.ask(then[1], body=then[2], method=then[0])
    while world.engine is None and world.models.under_way:
        await settle()
    return world.read[before:]


@pytest.mark.parametrize("again", ["/apps/m/public/x?a", "/apps/m/public/x?b", "/apps/m/public/y", "/apps/m/public"])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_only_the_same_request_counts_as_the_one_that_crashes_its_server(again: str, method: str) -> None:
    same = (again, method) == ("/apps/m/public/x?a", "GET")
    assert (await asks_again(("GET", "/apps/m/public/x?a", ""), (method, again, ""))).startswith(
        b"HTTP/1.1 422 "
    ) is same


@pytest.mark.parametrize("size", [10, 600_000])
@pytest.mark.parametrize("same", [True, False])
async def test_a_body_tells_requests_apart(size: int, same: bool) -> None:
    body = "x" * size
    again = ("POST", "/apps/m/public/x", body if same else "y" + body[1:])
    assert (await asks_again(("POST", "/apps/m/public/x", body), again)).startswith(b"HTTP/1.1 422 ") is same
