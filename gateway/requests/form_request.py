"""A request that is a form, such as one with audio: it goes on while it comes, once the model is known.

The agent asks for the body (`100 Continue`) when it has a connection to the engine. Until then the beginning is held,
so another replica may get the request; from then on it is bound to this one.
"""

from collections.abc import Callable
from typing import Any, Final

from controller.live.endpoints import Endpoint
from controller.live.key_ring import Principal
from gateway.bodies.form_reader import FormReader, model_part
from gateway.bodies.request_body import Asked, BadRequestError
from gateway.errors import GatewayError, unavailable
from gateway.requests.crash_watch import WAIT_S, crashes_engine
from gateway.requests.heads import forwarded, id_for_engine
from gateway.requests.receiving import MAX_BODY_BYTES
from gateway.requests.request import Exchange
from gateway.requests.states import OVER, UPLOAD_LIMIT_S, State
from gateway.routing.outcomes import Happening
from http1.bodies import keep
from http1.protocol.client import ClientConnection

MOST_HELD_BYTES: Final = 2**20
_CONTINUE_LIMIT_S: Final = 10.0  # the agent's own limit to connect is shorter
_WINDOW_S: Final = 15.0  # in which so much of a form must come while it holds a place at an engine, or its end
_LEAST_BYTES: Final = 4096


class FormExchange(Exchange):
    """One request with a form. Of its body at most `MOST_HELD_BYTES`, and one read more, are held."""

    __slots__ = ("_behind", "_continued", "_due_bytes", "_form")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._form: FormReader | None = None
        self._continued = False  # the replica's agent takes the body: from now on no other one may have it
        self._behind = b""  # the piece that came last, while it may be that of a form that crashes engines
        self._due_bytes = 0  # how much of the body must have come at the deadline

    # The client's side

    def _receive(self, principal: Principal) -> None:
        try:
            self._form = FormReader(self._head.named.get(b"content-type", b""))
        except BadRequestError as error:
            self.fail(GatewayError(400, "invalid", str(error)))
            return
        super()._receive(principal)
        if self._state is State.RECEIVING and not self._complete:
            self._read(b"".join(self._pieces))

    def _take(self, size: int) -> None:
        super()._take(size if size > MAX_BODY_BYTES else min(size, MOST_HELD_BYTES))

    def body(self, data: bytes) -> None:
        """A part of the request's body."""
        if self._state in OVER:
            return
        if not self._admitted:
            super().body(data)
            return
        self._size += len(data)
        if not self._continued:
            keep(self._pieces, data)
        try:
            self._take(self._size)
        except GatewayError as error:
            self.fail(error)
            return
        self._read(data)
        if self.state in OVER:
            return
        if self._continued:
            if self._size >= self._due_bytes:
                self._open_window()
            self._send_piece(data)
        elif self._size > MOST_HELD_BYTES:
            self._connection.pause_reading()

    def end(self) -> None:
        """The request is complete."""
        self._complete = True
        if self._admitted and self._state not in OVER:
            self._read(b"")
        if self._continued and not self._is_kept_back(self._send_rest):
            self._send_rest()

    def _send_rest(self) -> None:
        if self._upstream is not None:
            if self._behind:
                self._upstream.send(self._behind)
            self._upstream.end()
            self._await_answer()

    def _send_piece(self, data: bytes) -> None:
        """Passes a piece on; where some form crashes engines, the one before, so that none gets all of it."""
        if self._upstream is None:
            return
        behind, self._behind = self._behind, data if self._models.crashes.suspects else b""
        for piece in (behind, b"" if self._behind else data):
            if piece:
                self._upstream.send(piece)

    def _is_kept_back(self, go_on: Callable[[], None]) -> bool:
        """Whether a form of which all is known by now crashes engines, or may: then `go_on` may follow later.

        No engine has got all of it.
        """
        if self._upstream is None or not self._models.crashes.suspects:
            return False
        identity = self._identity()
        found = self._models.crashes.suspicion(identity)
        if found is None or (self._suspected and not found.crashes):
            return False
        if found.crashes:
            error = crashes_engine(self._model, found)
            (self._break_off if self._state is State.ANSWERING else self.fail)(error)
        else:
            self._suspected = True
            self.deadline = max(self.deadline, self._loop.time() + 2 * WAIT_S)
            self._work(self._go_on_once_decided, identity, go_on)
        return True

    async def _go_on_once_decided(self, identity: bytes, go_on: Callable[[], None]) -> None:
        await self._models.crashes.decided(identity, WAIT_S)
        if self._state not in OVER and not self._is_kept_back(go_on):
            go_on()

    def _note_body(self) -> None:
        if self._form is not None:
            self._body = self._form.digest

    def _route(self) -> None:
        """It was complete before its key was known."""
        self._read(b"".join(self._pieces))

    def _read(self, data: bytes) -> None:
        """Looks for the model, and for a second one behind it, which an engine may take for the first."""
        form = self._form
        if form is None:
            return
        try:
            form.feed(data)
            if self._complete:
                form.end()
        except BadRequestError as error:
            self.fail(GatewayError(400, "invalid", str(error), param=error.param or None))
            return
        if self._state is not State.RECEIVING:
            return
        if form.model is not None:
            self._asked = Asked(form.model, (), form.span)
            self._ask_for(self._asked, 0)  # the size of a file says nothing of tokens
        elif self._size > MOST_HELD_BYTES:
            message = f"model: is not in the first {MOST_HELD_BYTES} bytes of the form; write it before the file"
            self.fail(GatewayError(400, "model_too_late", message, param="model"))

    def _count_prompt(self, asked: Asked) -> int:  # noqa: ARG002 - of its body nothing is kept
        return 0 if self._form is None else self._form.text_bytes

    # The replica's side

    def _send(self, endpoint: Endpoint, upstream: ClientConnection) -> None:
        self._enter(State.SENT)
        self._upstream = upstream
        self._sent_at = self._loop.time()
        self.deadline = self._sent_at + _CONTINUE_LIMIT_S
        asked = self._of_asked()
        length = self._head.length
        if length is not None:
            length += len(self._model_for(endpoint)) - (asked.span[1] - asked.span[0])
        engines_id = id_for_engine(self._head, self.request_id)
        head = forwarded(self._head, endpoint, engines_id, length, readable=False, expect=True)
        upstream.begin(head, self, chunked=length is None, continued=self._continue)

    def _model_for(self, endpoint: Endpoint) -> bytes:
        """The part of the model, written anew: what the client's part says but for the name, no engine sees."""
        asked = self._of_asked()
        return model_part(self._engines_name(endpoint, asked.model) or asked.model)

    def _continue(self) -> None:
        """The agent takes the body."""
        upstream, endpoint = self._upstream, self._endpoint
        if self._continued or self._state is not State.SENT or upstream is None or endpoint is None:
            return
        if self._complete and self._is_kept_back(self._continue):
            return
        self._continued = True
        self._sent_at = self._loop.time()
        asked = self._of_asked()
        held, (start, end) = b"".join(self._pieces), asked.span
        self._pieces.clear()
        self._release()
        upstream.send(b"".join((held[:start], self._model_for(endpoint), held[end:])))
        if self._complete:
            upstream.end()
            self._await_answer()
        else:
            self.request_writable(ready=upstream.takes_more)  # what was held may already be more than it takes

    def _open_window(self, seconds: float = _WINDOW_S, least: int = _LEAST_BYTES) -> None:
        """From now on the client has so long for so much more of the body, within the limit for all of it."""
        if self._state is State.SENT and self._busy is None:
            self._due_bytes = self._size + least
            self.deadline = min(self._loop.time() + seconds, self._upload_until())

    def _upload_until(self) -> float:
        """When all of the body must have come. While the request waited for a replica, its client was not read."""
        return self._sent_at + UPLOAD_LIMIT_S

    def _await_answer(self) -> None:
        if self._state is State.SENT and self._endpoint is not None:
            self.deadline = self._loop.time() + self._endpoint.limits.first_token_timeout

    def request_writable(self, *, ready: bool) -> None:
        """Whether the agent takes more of the body. While it does not, the client is not slow."""
        if not self._continued or self._complete:
            return
        if ready:
            self._open_window()
            self._connection.resume_reading()
        else:
            self._open_window(UPLOAD_LIMIT_S, MAX_BODY_BYTES)
            self._connection.pause_reading()

    def _wants_events(self) -> bool:
        """As for every request. Before a form is complete, its client does not read."""
        return self._complete and self._form is not None and self._form.streams

    def _next_replica(self) -> None:
        """As for every request, but where its body has begun to pass on, no other replica gets it."""
        if not self._continued:
            super()._next_replica()
        elif self._held is not None:
            self._answer_held(self._held)
        else:
            self.fail(unavailable("the replica did not take the request, of which a part has passed on; send it again"))

    def overdue(self, now: float) -> None:
        """Ends the state whose deadline has passed at loop time `now`, if so."""
        if now >= self.deadline and self._state is State.SENT and self._busy is None:
            if not self._continued:
                self._drop_upstream()
                self._ended(Happening.NOT_CONNECTED, "the agent did not ask for the body in time")
                return
            if not self._complete:
                self._body_late()
                return
        super().overdue(now)

    def _body_late(self) -> None:
        if not self._continued or self.deadline >= self._upload_until():
            super()._body_late()
            return
        message = f"body: fewer than {_LEAST_BYTES} bytes came within {_WINDOW_S:g} s; send the form without pauses"
        self.fail(GatewayError(408, "body_timed_out", message))
