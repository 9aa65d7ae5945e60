"""The body of a request that is a form, such as one with audio: it passes on while it comes, once the model is known.

The agent requests the body (`100 Continue`) when it has a connection to the engine. Until then the beginning is held,
so another replica may get the request; from then on it is bound to this replica.
"""

from typing import TYPE_CHECKING, ClassVar, Final

from controller.live.endpoints import Endpoint
from gateway.bodies.form_reader import FormReader, model_part
from gateway.bodies.parameters import BadRequestError, Parameters
from gateway.errors import GatewayError
from gateway.requests.heads import forwarded, id_for_engine
from gateway.requests.states import OVER, RECEIVING, SENT, UPLOAD_LIMIT_S
from gateway.requests.upload import MAX_BODY_BYTES, Upload
from gateway.routing.retry_rules import Happening
from http1.bodies import keep
from http1.protocol.client import ClientConnection

if TYPE_CHECKING:
    from gateway.requests.request import Request

MOST_HELD_BYTES: Final = 2**20
_CONTINUE_LIMIT_S: Final = 10.0  # the agent's own limit to connect is shorter
_WINDOW_S: Final = 15.0  # in which a form's next part, or its end, must come while it holds a place at an engine
_LEAST_BYTES: Final = 4096


class FormUpload(Upload):
    """A form. Of it at most `MOST_HELD_BYTES`, and one read more, are held."""

    __slots__ = ("_behind", "_continued", "_due_bytes", "_form")
    reads_events: ClassVar[bool] = True

    def __init__(self, request: "Request") -> None:
        super().__init__(request)
        self._form: FormReader | None = None
        self._continued = False  # the replica's agent takes the body: from now on no other replica may have it
        self._behind = b""  # the piece that came last, while it may be that of a form that crashes engines
        self._due_bytes = 0  # how much of the body must have come at the deadline

    # As it comes

    def start(self, key: str) -> None:
        try:
            self._form = FormReader(self.request.head.named.get(b"content-type", b""))
        except BadRequestError as error:
            raise GatewayError(400, "invalid", str(error)) from error
        super().start(key)
        if self.request.state is RECEIVING and not self.complete:
            self._feed(b"".join(self.parts))

    def take(self, size: int) -> None:
        super().take(size if size > MAX_BODY_BYTES else min(size, MOST_HELD_BYTES))

    def body(self, data: bytes) -> None:
        request = self.request
        if request.state in OVER:
            return
        if not self.started:
            super().body(data)
            return
        self.size += len(data)
        if not self._continued:
            keep(self.parts, data)
        try:
            self.take(self.size)
        except GatewayError as error:
            request.fail(error)
            return
        self._feed(data)
        if request.ended:
            return
        if self._continued:
            if self.size >= self._due_bytes:
                self._open_window()
            self._send_piece(data)
        elif self.size > MOST_HELD_BYTES:
            request.connection.pause_reading()

    def end(self) -> None:
        self.complete = True
        if self.started and not self.request.ended:
            self._feed(b"")
        if self._continued and not self.request.dispatch.stop_or_delay(self._send_rest):
            self._send_rest()

    def read(self) -> None:
        """Reads a form that was complete before its key was known."""
        self._feed(b"".join(self.parts))

    def _feed(self, data: bytes) -> None:
        """Finds the model, and a second model behind it, which an engine may take for the first."""
        request, form = self.request, self._form
        if form is None:
            return
        try:
            form.feed(data)
            if self.complete:
                form.end()
        except BadRequestError as error:
            request.refuse(error)
            return
        if request.state is not RECEIVING:
            return
        if form.model is not None:
            request.uploaded(Parameters(form.model), 0)  # the size of a file means nothing for tokens
        elif self.size > MOST_HELD_BYTES:
            message = f"model: is not in the first {MOST_HELD_BYTES} bytes of the form; write it before the file"
            request.fail(GatewayError(400, "model_too_late", message, param="model"))

    # To a replica

    def send(self, endpoint: Endpoint, server: ClientConnection) -> None:
        request, form = self.request, self._read_form()
        length = request.head.length
        if length is not None:
            length += len(self._model_for(endpoint)) - (form.span[1] - form.span[0])
        engines_id = id_for_engine(request.head, request.request_id)
        head = forwarded(request.head, endpoint, engines_id, length, readable=False, expect=True)
        request.exchange.send_head(server, head, chunked=length is None, continued=self._continue)
        request.deadline = request.exchange.sent_at + _CONTINUE_LIMIT_S

    def _continue(self) -> None:
        request, exchange = self.request, self.request.exchange
        server, endpoint = exchange.server, exchange.endpoint
        if self._continued or request.state is not SENT or server is None or endpoint is None:
            return
        if self.complete and request.dispatch.stop_or_delay(self._continue):
            return
        self._continued = True
        exchange.sent_at = request.loop.time()
        held, (start, end) = b"".join(self.parts), self._read_form().span
        self.parts.clear()
        self.drop()
        server.send(b"".join((held[:start], self._model_for(endpoint), held[end:])))
        if self.complete:
            server.end()
            self._await_answer()
        else:
            self.server_writable(ready=server.takes_more)  # what was held may already be more than it takes

    def _send_piece(self, data: bytes) -> None:
        """Passes a piece on; where some form crashes engines, the piece before, so that no engine gets all of it."""
        server = self.request.exchange.server
        if server is None:
            return
        behind, self._behind = self._behind, data if self.request.shared.crashes.suspicions else b""
        for piece in (behind, b"" if self._behind else data):
            if piece:
                server.send(piece)

    def _send_rest(self) -> None:
        server = self.request.exchange.server
        if server is not None:
            if self._behind:
                server.send(self._behind)
            server.end()
            self._await_answer()

    def _model_for(self, endpoint: Endpoint) -> bytes:
        """The form's part with the model, written again: of the client's part, an engine gets only the name."""
        name = self._read_form().model or ""
        return model_part(self.request.dispatch.engines_name(endpoint, name))

    def _read_form(self) -> FormReader:
        if self._form is None:
            raise AssertionError("the form is not read yet")
        return self._form

    def is_bound(self) -> bool:
        return self._continued

    # Deadlines

    def _open_window(self, seconds: float = _WINDOW_S, least: int = _LEAST_BYTES) -> None:
        """Gives the client this long for this much more of the body, within the limit for all of it."""
        request = self.request
        if request.state is SENT and request.exchange.busy is None:
            self._due_bytes = self.size + least
            request.deadline = min(request.loop.time() + seconds, self._upload_until())

    def _upload_until(self) -> float:
        """When all of the body must have come. While the request waited for a replica, its client was not read."""
        return self.request.exchange.sent_at + UPLOAD_LIMIT_S

    def _await_answer(self) -> None:
        request = self.request
        if request.state is SENT and request.exchange.endpoint is not None:
            request.deadline = request.loop.time() + request.exchange.endpoint.limits.first_token_timeout

    def server_writable(self, *, ready: bool) -> None:
        if not self._continued or self.complete:
            return
        if ready:
            self._open_window()
            self.request.connection.resume_reading()
        else:
            self._open_window(UPLOAD_LIMIT_S, MAX_BODY_BYTES)
            self.request.connection.pause_reading()

    def end_if_late_at_replica(self) -> bool:
        """Ends the request where the agent or the client is late with the body; returns whether it did."""
        request = self.request
        if request.exchange.busy is not None or (self._continued and self.complete):
            return False
        if not self._continued:
            request.dispatch.ended(Happening.NOT_CONNECTED, "the agent did not ask for the body in time")
        elif request.deadline >= self._upload_until():
            self.late()
        else:
            message = f"body: fewer than {_LEAST_BYTES} bytes came within {_WINDOW_S:g} s; send the form without pauses"
            request.fail(GatewayError(408, "body_timed_out", message))
        return True

    # About it

    def digest(self) -> bytes:
        return b"" if self._form is None else self._form.digest

    def text_bytes(self) -> int:
        return 0 if self._form is None else self._form.text_bytes

    def wants_events(self) -> bool:
        """Whether its client reads events. Before a form is complete, its client does not read."""
        return self.complete and self._form is not None and self._form.streams

    def release(self) -> None:
        self.drop()
