"""The heads that pass through the gateway: what goes on to an agent, what comes back, what the agent says. Pure."""

from functools import lru_cache
from typing import Final, NamedTuple

from controller.live.endpoints import Endpoint
from gateway.outcomes import Happening, of_agents_answer
from http1.head import HOP_BY_HOP, Fields, RequestHead, ResponseHead, end_to_end, request_bytes
from schemas.wire import (
    OUR_HEADERS,
    PROXY_ENGINE_PREFIX,
    PROXY_IN_FLIGHT_HEADER,
    PROXY_OUTCOME_HEADER,
    PROXY_REFUSAL_HEADER,
)

# A client's keys and cookies are between it and the gateway.
_NOT_FORWARDED: Final = HOP_BY_HOP | {
    *(b"host", b"authorization", b"x-api-key", b"api-key", b"cookie", b"content-length", b"expect", b"x-request-id"),
}
_READABLE_ONLY: Final = _NOT_FORWARDED | {b"accept-encoding"}
_NOT_RETURNED: Final = HOP_BY_HOP | {b"date", b"server", b"set-cookie", b"x-request-id", b"content-length"}
_OURS: Final = OUR_HEADERS.encode()
_ENGINES: Final = PROXY_ENGINE_PREFIX.encode()
_REFUSAL: Final = PROXY_REFUSAL_HEADER.lower().encode()
_OUTCOME: Final = PROXY_OUTCOME_HEADER.lower().encode()
_IN_FLIGHT: Final = PROXY_IN_FLIGHT_HEADER.lower().encode()


def forwarded(
    head: RequestHead, endpoint: Endpoint, request_id: str, length: int | None, *, readable: bool, expect: bool = False
) -> bytes:
    """The head for a replica's agent. The target is kept as the client encoded it.

    Args:
        head: of the client's request.
        endpoint: the replica.
        request_id: of the request.
        length: of the body, in bytes; None: it is sent in chunks.
        readable: the answer must come without an encoding, since the gateway changes it or has begun it.
        expect: the body follows once the agent asks for it.
    """
    replica = _replica(endpoint.address, endpoint.instance, endpoint.secret)
    fields = end_to_end(head, _READABLE_ONLY if readable else _NOT_FORWARDED, prefix=_OURS)
    fields += replica.fields
    fields += (
        (b"x-request-id", request_id.encode()),
        (b"transfer-encoding", b"chunked") if length is None else (b"content-length", b"%d" % length),
    )
    if expect:
        fields.append((b"expect", b"100-continue"))
    return request_bytes(head.method, replica.path + head.target, fields)


def address_of(endpoint: Endpoint) -> tuple[str, int]:
    """Host and port of a replica's agent."""
    return _replica(endpoint.address, endpoint.instance, endpoint.secret).address


class _Replica(NamedTuple):
    """What requests to a replica have in common. `path`: before the engine's own."""

    address: tuple[str, int]
    path: bytes
    fields: Fields


@lru_cache(maxsize=4096)
def _replica(address: str, instance: str, secret: str) -> _Replica:
    host, _, port = address.rpartition(":")
    fields = [(b"host", address.encode()), (b"authorization", b"Bearer " + secret.encode())]
    return _Replica((host.strip("[]"), int(port)), b"%b/%b" % (_ENGINES, instance.encode()), fields)


def returned(head: ResponseHead, request_id: str) -> Fields:
    """The fields for the client, of an engine's answer."""
    fields = end_to_end(head, _NOT_RETURNED, prefix=_OURS)
    fields.append((b"x-request-id", request_id.encode()))
    return fields


def of_agent(head: ResponseHead) -> tuple[Happening | None, str]:
    """What an answer's head says happened, and the agent's word for it; None: it is the engine's, to be passed on."""
    refusal, outcome = head.named.get(_REFUSAL, b""), head.named.get(_OUTCOME, b"")
    happening = of_agents_answer(
        refusal=refusal.decode("latin-1") or None, outcome=outcome.decode("latin-1") or None, status=head.status
    )
    return happening, (refusal or outcome).decode("latin-1")


def in_flight(head: ResponseHead) -> int | None:
    """How many requests the agent has in flight at the replica; None: it does not say."""
    told = head.named.get(_IN_FLIGHT, b"")
    return int(told) if told.isdigit() else None
