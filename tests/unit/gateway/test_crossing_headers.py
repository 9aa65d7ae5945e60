"""Which fields of a client reach an engine, and which of an engine reach its client."""

from collections.abc import Callable, Iterator

import pytest
from structlog.testing import capture_logs

from support.standins.exchange_world import BODY, World, settle

TO_ENGINES = (
    *("accept", "accept-encoding", "accept-language", "user-agent", "content-type", "traceparent", "tracestate"),
    *("anthropic-beta", "anthropic-version", "openai-organization", "openai-beta", "x-stainless-lang", "x-session-id"),
)
KEPT_FROM_ENGINES = (
    *("authorization", "x-api-key", "api-key", "cookie", "expect", "te", "keep-alive", "proxy-authorization"),
    *("forwarded", "x-real-ip", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-prefix"),
    *("x-forwarded-user", "x-data-parallel-rank", "x-gpuward-instance", "x-named-by-connection"),
)
TO_CLIENTS = (
    *("content-language", "content-disposition", "content-location", "cache-control", "retry-after", "vary", "etag"),
    *("last-modified", "openai-processing-ms", "openai-model", "anthropic-ratelimit-tokens-limit"),
    *("x-ratelimit-remaining-tokens", "x-should-retry", "x-compute-time", "x-inference-id"),
)
KEPT_FROM_CLIENTS = (
    *("clear-site-data", "strict-transport-security", "alt-svc", "nel", "report-to", "reporting-endpoints", "refresh"),
    *("access-control-allow-origin", "access-control-allow-credentials", "service-worker-allowed", "set-cookie"),
    *("content-security-policy", "content-security-policy-report-only", "x-frame-options", "x-xss-protection"),
    *("x-dns-prefetch-control", "x-content-type-options", "x-sourcemap", "sourcemap", "link", "location", "server"),
    *(
        "www-authenticate",
        "cross-origin-opener-policy",
        "permissions-policy",
        "referrer-policy",
        "origin-agent-cluster",
    ),
    *("x-accel-redirect", "x-accel-buffering", "x-sendfile", "x-forwarded-for", "x-gpuward-outcome-of-another"),
    *("keep-alive", "trailer", "x-named-by-connection", "server-timing", "set-login", "speculation-rules"),
)
VALUE = "value-7"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


async def exchanged(asked: str = "", answered: str = "") -> tuple[bytes, bytes]:
    """What an engine's agent gets of a request with these fields, and a client of an answer with those."""
    world = World()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n{asked}Content-Length: {len(BODY)}\r\n\r\n"
    world.transport.receive(head.encode() + BODY)
    await settle()
    (engine,) = world.pool.made
    world.answer(f"HTTP/1.1 200 OK\r\n{answered}content-length: 2\r\n\r\n{{}}".encode())
    await settle()
    world.transport.lose()
    await settle()
    return bytes(engine.written), bytes(world.transport.written)


@pytest.mark.parametrize("name", [*TO_ENGINES, *KEPT_FROM_ENGINES])
@pytest.mark.parametrize("write", [str.lower, str.title])
async def test_fields_of_a_client(name: str, write: Callable[[str], str]) -> None:
    connection = "Connection: X-Named-By-Connection\r\n" if name == "x-named-by-connection" else ""
    at_engine, _ = await exchanged(f"{connection}{write(name)}: {VALUE}\r\n")
    assert (f"{name}: {VALUE}".encode() in at_engine) is (name in TO_ENGINES)
    assert (VALUE.encode() in at_engine) is (name in TO_ENGINES)


@pytest.mark.parametrize("name", [*TO_CLIENTS, *KEPT_FROM_CLIENTS])
async def test_fields_of_an_engine(name: str) -> None:
    connection = "connection: X-Named-By-Connection\r\n" if name == "x-named-by-connection" else ""
    _, at_client = await exchanged(answered=f"{connection}{name.title()}: {VALUE}\r\n")
    assert at_client.startswith(b"HTTP/1.1 200 ")
    assert (f"{name}: {VALUE}".encode() in at_client) is (name in TO_CLIENTS)
    assert (VALUE.encode() in at_client) is (name in TO_CLIENTS)
