"""A path that a client chose never becomes an endpoint of usage, whichever check refuses the request first."""

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.admission.router import Router
from http1.forwarded import TrustedProxies
from http1.protocol.connection_admission import ConnectionAdmission
from http1.protocol.connection_rules import Limits
from http1.protocol.server_connection import ServerConnection, Service
from support.http1.transport import MemoryTransport
from support.standins.exchange_world import World, settle

HEAD = "POST {} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer gpw_x\r\nContent-Length: 9\r\n\r\n"


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", "chat/completions"),
        ("/v1/audio/transcriptions", "audio/transcriptions"),
        ("/v1/" + "x" * 30_000, ""),
        ("/v1/chat/completions/", ""),
        ("/v1/models/chat", ""),
    ],
    ids=lambda text: text[:30] or "none",
)
async def test_a_request_beyond_its_clients_share_is_counted_by_a_known_endpoint(path: str, endpoint: str) -> None:
    world = World()
    keys: Any = world.models.keys
    keys.owner = lambda _: world.owner
    controller: Any = SimpleNamespace()  # nothing is passed on
    router = Router(world.models, controller, {}, TrustedProxies())
    admission = ConnectionAdmission(Limits(most=99, most_unknown_per_address=9, most_bodies_per_client=1), name="test")
    service = Service(router.handle, router.malformed, admission)
    clients = [
        MemoryTransport(ServerConnection(service, opened=lambda _: None, closed=lambda _: None)) for _ in range(2)
    ]
    clients[0].receive(HEAD.format("/v1/chat/completions").encode())
    clients[1].receive(HEAD.format(path).encode("latin-1"))
    await settle()
    assert b"too_much_in_flight" in clients[1].written
    batch = world.models.quotas.batches.next()
    assert batch is not None
    assert [(row.endpoint, row.counts.refused) for row in batch[1]] == [(endpoint, 1)]
