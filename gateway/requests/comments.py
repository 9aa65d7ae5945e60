"""Comments in a stream without a first piece, so that clients and proxies on the way do not give up."""

import math
from typing import TYPE_CHECKING, Final

from gateway.requests.heads import UNBUFFERED, parse_agent_headers
from gateway.requests.states import State
from http1.protocol.heads import lines_of

if TYPE_CHECKING:
    from gateway.requests.exchange import Exchange

FIRST_S: Final = 15.0  # after the request came
EVERY_S: Final = 10.0
# An engine that works on a prompt may send nothing, not even a head, until the first token. It refuses a request as
# soon as that is read. The first comment sends the status, so it waits for the head, or for this time.
UNANSWERED_S: Final = 30.0
_STILL: Final = b": the engine works\n\n"
_EVENTS: Final = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_OK: Final = 200


def comment_on(exchange: "Exchange", now: float) -> None:
    """Sends a comment that is due at loop time `now`, if its client reads events."""
    request = exchange.request
    match request.state:
        case State.WAITING if request.upload.wants_events():
            table = request.shared.routes.table
            known = table.model(request.model)
            load_s = known.load_s if known is not None else None
            _send(exchange, now, _waiting(now - request.arrived, load_s, waking=not table.runs(request.model)))
        case State.SENT if request.upload.complete and not exchange.keeps_back:
            _comment_on_engine(exchange, now)
        case State.ANSWERING if exchange.events is not None:
            if exchange.events.between and exchange.ready:
                exchange.client.send(_STILL)
            request.comment_at = now + EVERY_S
        case State.ANSWERING:
            request.comment_at = math.inf
        case _:
            pass


def _comment_on_engine(exchange: "Exchange", now: float) -> None:
    """Comments while the engine has sent no part of its answer's body.

    The first comment sends a head, and with it the status. So it waits for the engine's head, or for `UNANSWERED_S`.
    """
    request, answer = exchange.request, exchange.head_that_waits
    if not request.upload.reads_events:
        request.comment_at = math.inf
    elif request.commented:
        _send(exchange, now, _STILL)
    elif answer is not None:
        events, plain, _ = parse_agent_headers(answer).body
        if answer.status == _OK and events and plain:
            exchange.client.start(_OK, exchange.answer_lines(answer), length=None)
            _send(exchange, now, _STILL)
    elif now >= exchange.sent_at + UNANSWERED_S and request.upload.wants_events():
        _send(exchange, now, _STILL)


def _send(exchange: "Exchange", now: float, text: bytes) -> None:
    request = exchange.request
    if not request.commented and not exchange.client.started:
        fields = [*_EVENTS, (b"x-request-id", request.request_id.encode())]
        exchange.client.start(_OK, lines_of(fields) + UNBUFFERED, length=None)
    request.commented = True
    request.comment_at = now + EVERY_S
    exchange.client.send(text)


def _waiting(waited_s: float, load_s: float | None, *, waking: bool) -> bytes:
    """The comment of a request that waits for a replica.

    Args:
        waited_s: seconds since the request came.
        load_s: seconds that the model's last start took; None if unknown.
        waking: the model starts; otherwise its replicas are at their limit.
    """
    if not waking:
        return b": waiting for a replica\n\n"
    left_s = None if load_s is None else round(load_s - waited_s)
    if left_s is None or left_s <= 0:
        return b": waking\n\n"
    return b": waking, about %d s\n\n" % left_s
