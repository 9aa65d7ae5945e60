"""The heads that pass through the gateway: those for agents, those of answers, and agents' marks in them. Pure."""

import re
from collections.abc import Mapping
from functools import lru_cache
from random import getrandbits
from typing import Final, NamedTuple

from controller.live.endpoints import Endpoint
from gateway.admission.app_paths import APPS
from gateway.requests.event_stream import is_event_stream, is_plain
from gateway.routing.retry_rules import Happening, of_agents_answer
from http1.protocol.connecting import Address
from http1.protocol.heads import HOP_BY_HOP, VARYING, Fields, PassedOn, RequestHead, ResponseHead, end_to_end, lines_of
from http1.tls.pinned import Pinned
from schemas.wire import (
    OUR_HEADERS,
    PROXY_ENGINE_PREFIX,
    PROXY_IN_FLIGHT_HEADER,
    PROXY_OUTCOME_HEADER,
    PROXY_REFUSAL_HEADER,
)

_OURS: Final = OUR_HEADERS.encode()
# Fields that engines do not get. A client's keys and cookies are for the gateway, the client does not choose the rank
# of an engine that answers, and an engine must not believe what it claims as its address.
_KEPT_HERE: Final = HOP_BY_HOP | {
    *(b"host", b"authorization", b"x-api-key", b"api-key", b"cookie", b"expect", b"x-data-parallel-rank"),
    *(b"forwarded", b"x-real-ip"),
}
_KEPT_PREFIXES: Final = (_OURS, b"x-forwarded-")
# Engines answer on the origin of the dashboard, and maybe behind a proxy that obeys fields of its own. A field passes
# that is known to be harmless: these, and those that begin so.
_RETURNED_NAMES: Final = frozenset(
    (b"cache-control", b"retry-after", b"vary", b"etag", b"last-modified", b"x-request-id", b"x-should-retry")
)
_RETURNED_PREFIXES: Final = (b"content-", b"openai-", b"anthropic-", b"x-")
# Of those the fields that mean something to browsers and crawlers, and to nginx, Apache, LiteSpeed and lighttpd.
_NOT_RETURNED_PREFIXES: Final = (
    *(b"content-security-policy", b"x-content-security-policy", b"x-webkit-csp", b"x-content-type-options"),
    *(b"x-frame-options", b"x-xss-protection", b"x-dns-prefetch-control", b"x-permitted-cross-domain-policies"),
    *(b"x-download-options", b"x-ua-compatible", b"x-robots-tag", b"x-sourcemap", b"x-pingback"),
    *(b"x-accel-", b"x-sendfile", b"x-lighttpd-", b"x-litespeed-", b"x-lsapi", b"x-reproxy-", b"x-forwarded-"),
    *(b"x-real-ip", b"x-http-method", b"x-original-", b"x-rewrite-"),
)
_APP_HEAD: Final = b"%b %b%b HTTP/1.1\r\n%b%bx-request-id: %b\r\n%b\r\n"
_RETURNED_OF_APPS: Final = frozenset((b"accept-ranges", b"allow", b"link"))
_LOCATION: Final = b"location"
_SWITCHES: Final = b"sec-websocket-"
# An engine knows itself by the address at which its agent reaches it.
_OF_ENGINE: Final = re.compile(rb"(?i:http://(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?(?=[/?#]|$))|(?=/(?!/))")
# The id and the length are adjacent: see `http1.protocol.fast_paths`.
_HEAD: Final = b"%b %b%b HTTP/1.1\r\n%b%b%bx-request-id: %b\r\n%b\r\n\r\n"
_ENGINES: Final = PROXY_ENGINE_PREFIX.encode()
_REFUSAL: Final = PROXY_REFUSAL_HEADER.lower().encode()
_OUTCOME: Final = PROXY_OUTCOME_HEADER.lower().encode()
_ID: Final = b"x-request-id"
_PARSED: Final = object()  # key of results for heads that are alike
UNBUFFERED: Final = b"x-accel-buffering: no\r\n"  # of streams: proxies such as nginx pass each event on as it comes
_IN_FLIGHT: Final = PROXY_IN_FLIGHT_HEADER.lower().encode()


def _may_return(name: bytes) -> bool:
    if name in _RETURNED_NAMES:
        return True
    return name.startswith(_RETURNED_PREFIXES) and not name.startswith(_NOT_RETURNED_PREFIXES)


_FORWARDED: Final = PassedOn(_KEPT_HERE, _KEPT_PREFIXES)
_READABLE: Final = PassedOn(_KEPT_HERE | {b"accept-encoding"}, _KEPT_PREFIXES)
_RETURNED: Final = PassedOn(HOP_BY_HOP, _OURS, _may_return)


def forwarded(
    head: RequestHead, endpoint: Endpoint, request_id: str, length: int | None, *, readable: bool, expect: bool = False
) -> bytes:
    """The head for a replica's agent. The target is kept as the client encoded it.

    `length`: the body's, in bytes; None: it is sent in chunks.
    `readable`: the answer must come without an encoding, since the gateway changes it or has started it.
    `expect`: the body follows once the agent requests it.
    """
    replica = _replica(endpoint.address, endpoint.instance, endpoint.secret, endpoint.certificate)
    passed = _READABLE if readable else _FORWARDED
    lines = head.alike.get(passed) or passed.lines(head)
    expected = b"expect: 100-continue\r\n" if expect else b""
    framing = b"transfer-encoding: chunked" if length is None else b"content-length: %d" % length
    names = (head.method, replica.path, head.target)
    return _HEAD % (*names, lines, replica.lines, expected, request_id.encode(), framing)


def forwarded_to_app(head: RequestHead, endpoint: Endpoint, request_id: str, length: int, target: bytes) -> bytes:
    """The head for a replica's agent of a request below `/apps`. `target`: the server's; `length`: the body's."""
    replica = _replica(endpoint.address, endpoint.instance, endpoint.secret, endpoint.certificate)
    framing = b"content-length: %d\r\n" % length if length or head.has_body or b"content-length" in head.named else b""
    upgrade = b"connection: upgrade\r\nupgrade: %b\r\n" % head.upgrade if head.upgrade else b""
    names = (head.method, replica.path, target)
    return _APP_HEAD % (*names, _FORWARDED.lines(head), replica.lines, request_id.encode(), upgrade or framing)


def id_for_engine(head: RequestHead, request_id: str) -> str:
    """A request's id as its engine gets it: an id that the client chose gets a random suffix.

    Engines use this id as their own, and some fail where two requests have the same.
    """
    return f"{request_id}-{getrandbits(64):016x}" if _ID in head.named else request_id


# Where clients name their session, the most specific first: ours, then those of coding agents and other proxies.
SESSION_FIELDS: Final = (
    b"x-session-id",
    b"x-claude-code-session-id",
    b"x-session-affinity",
    b"session-id",
    b"session_id",
)


def session_of(named: Mapping[bytes, bytes]) -> bytes:
    """The id of a request's session, from the fields of its head; empty without one."""
    for field in SESSION_FIELDS:
        if session := named.get(field):
            return session
    return b""


def address_of(endpoint: Endpoint) -> Address:
    """Where a replica's agent is, and the certificate that it must show."""
    return _replica(endpoint.address, endpoint.instance, endpoint.secret, endpoint.certificate).address


class _Replica(NamedTuple):
    """What requests to a replica have in common. `path`: the start of each path; `lines`: the head's."""

    address: Address
    path: bytes
    lines: bytes


@lru_cache(maxsize=256)
def _replica(address: str, instance: str, secret: str, certificate: str) -> _Replica:
    name, _, port = address.rpartition(":")
    host = name.strip("[]")
    at = Pinned(host, int(port), bytes.fromhex(certificate)) if certificate else (host, int(port))
    lines = lines_of([(b"host", address.encode()), (b"authorization", b"Bearer " + secret.encode())])
    return _Replica(at, b"%b/%b" % (_ENGINES, instance.encode()), lines)


def returned(head: ResponseHead) -> bytes:
    """The lines for the client, of an engine's answer."""
    lines: bytes = head.alike.get(_RETURNED) or _RETURNED.lines(head)
    return lines + UNBUFFERED if parse_agent_headers(head).body[0] else lines


def returned_by_app(head: ResponseHead, name: str) -> Fields:
    """The fields for the client, of the answer of a server below `/apps/NAME`."""
    fields = []
    for field, value in end_to_end(head, HOP_BY_HOP | VARYING, prefix=_OURS):
        if field == _LOCATION:
            fields.append((field, _location(value, name)))
        elif field in _RETURNED_OF_APPS or field.startswith(_SWITCHES) or _may_return(field):
            fields.append((field, value))
    return [*fields, (b"x-accel-buffering", b"no")] if parse_agent_headers(head).body[0] else fields


def _location(value: bytes, name: str) -> bytes:
    """A path of the engine as its client knows it; places elsewhere stay as they are."""
    own = _OF_ENGINE.match(value)
    return value if own is None else APPS + name.encode() + value[own.end() :]


class AgentHeaders(NamedTuple):
    """The gateway's reading of an answer's head, which is the same for all heads that are alike.

    Attributes:
        happening: None: the answer is the engine's, to be passed on.
        detail: the agent's name for it.
        in_flight: requests at the replica, as its agent counts them; None if not stated.
        body: whether it is a stream of events, whether it can be read as it is, and its encoding.
    """

    happening: Happening | None
    detail: str
    in_flight: int | None
    body: tuple[bool, bool, str]


def parse_agent_headers(head: ResponseHead) -> AgentHeaders:
    """The agent's marks in an answer's head, and the form of its body."""
    parsed: AgentHeaders | None = head.alike.get(_PARSED)
    if parsed is None:
        parsed = head.alike[_PARSED] = _read(head)
    return parsed


def _read(head: ResponseHead) -> AgentHeaders:
    refusal, outcome = head.named.get(_REFUSAL, b"").decode("latin-1"), head.named.get(_OUTCOME, b"").decode("latin-1")
    happening = of_agents_answer(refusal=refusal or None, outcome=outcome or None, status=head.status)
    reported, encoding = head.named.get(_IN_FLIGHT, b""), head.named.get(b"content-encoding", b"")
    events = is_event_stream(head.named.get(b"content-type", b""))
    in_flight = int(reported) if reported.isdigit() else None
    return AgentHeaders(
        happening, refusal or outcome, in_flight, (events, is_plain(encoding), encoding.decode("latin-1"))
    )
