"""`GET /v1/models` with a key that this gateway meets for the first time."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from controller.live.key_ring import Principal
from gateway.admission.router import Router
from gateway.reporting.request_metrics import RequestMetrics
from gateway.requests.request import Request
from gateway.routing.routing_table import ServedName
from http1.forwarded import TrustedProxies
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.server_connection import ServerConnection, Service
from support.http1.transport import MemoryTransport

ASK = b"GET /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer gpw_x\r\n\r\n"


async def asked(owner: Principal | None, *, late: bool = False) -> tuple[bytes, set[Request]]:
    """What the client reads, and what is still under way."""
    looked_up = asyncio.Event()

    async def first_owner(_keys: Sequence[str]) -> Principal | None:
        await looked_up.wait()
        return owner

    under_way: set[Request] = set()
    table = SimpleNamespace(served_models=lambda _: {"m": ServedName("running")}, knows=lambda _: False)
    models: Any = SimpleNamespace(
        keys=SimpleNamespace(owner=lambda _: None, first_owner=first_owner),
        routes=SimpleNamespace(table=table),
        metrics=RequestMetrics(CollectorRegistry()),
        under_way=under_way,
        failed=lambda *_: None,
        queues=SimpleNamespace(note_refusal=lambda *_: None),
        loop=asyncio.get_running_loop(),
    )
    controller: Any = None  # nothing is passed on
    router = Router(models, controller, {}, TrustedProxies())
    limits = Limits(most=9, most_unknown_per_address=9, most_bodies_per_client=9)
    admission = ConnectionAdmission(limits, name="test")
    service = Service(router.handle, router.malformed, admission)
    transport = MemoryTransport(ServerConnection(service, opened=lambda _: None, closed=lambda _: None))
    transport.receive(ASK)
    await asyncio.sleep(0)
    assert len(under_way) == 1
    if late:
        for one in list(under_way):
            one.overdue(one.deadline)
    else:
        looked_up.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return bytes(transport.written), under_way


@pytest.mark.parametrize(
    ("owner", "status", "said"),
    [
        (Principal("k", "k", "inference"), b"200 OK", b'"id":"m"'),
        (Principal("k", "k", "viewer"), b"403 Forbidden", b'"code":"forbidden"'),
        (None, b"401 Unauthorized", b'"code":"unauthenticated"'),
    ],
)
async def test_a_key_that_is_not_in_memory_is_looked_up_first(
    owner: Principal | None, status: bytes, said: bytes
) -> None:
    written, under_way = await asked(owner)
    assert written.startswith(b"HTTP/1.1 " + status)
    assert said in written
    assert under_way == set()


async def test_a_key_that_is_not_looked_up_in_time_is_answered_all_the_same() -> None:
    written, under_way = await asked(None, late=True)
    assert written.startswith(b"HTTP/1.1 503 ")
    assert under_way == set()
