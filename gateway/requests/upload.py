"""The body of a request: it comes in bounds, is read once it is complete, and goes to replicas from memory."""

from typing import TYPE_CHECKING, Any, ClassVar, Final

from controller.live.endpoints import Endpoint
from gateway.bodies.json_body import JsonBody, read_json
from gateway.bodies.long_bodies import LONG_BYTES, ChildError
from gateway.bodies.parameters import BadRequestError
from gateway.errors import GatewayError, unavailable
from gateway.requests.heads import forwarded, id_for_engine, returned
from gateway.requests.states import LONG_READ_LIMIT_S, RECEIVING, UPLOAD_LIMIT_S
from gateway.usage.usage_option import options_with_usage, requests_usage
from http1.bodies import BodiesFullError, Hold, keep
from http1.protocol.client import ClientConnection
from http1.protocol.heads import ResponseHead

if TYPE_CHECKING:
    from gateway.requests.request import Request

MAX_BODY_BYTES: Final = 64 * 2**20


class Upload:
    """A JSON body. Other bodies are types of their own: `FormUpload`, `AppUpload`."""

    reads_events: ClassVar[bool] = True  # in an answer, so that only complete events pass
    __slots__ = ("complete", "hold", "json", "parts", "request", "size", "started")

    def __init__(self, request: "Request") -> None:
        self.request = request
        head = request.head
        came, head.body = head.body, None  # taken: the connection does not hand it over
        self.complete = came is not None or head.length == 0
        if head.first is not None:
            came = bytes(head.take_first() or b"")
        self.parts: list[bytes] = [] if came is None else [came]
        self.size = 0 if came is None else len(came)
        self.started = False  # the key is admitted
        self.hold: Hold | None = None
        self.json: JsonBody | None = None

    # As it comes

    def start(self, key: str) -> None:
        """The key (by id) is admitted: the body may come.

        Raises:
            GatewayError: it is too large, or too many bytes are in flight.
        """
        request = self.request
        self.hold = request.shared.bodies.begin(key)
        self.take(max(request.head.length or 0, self.size))
        self.started = True
        if self.complete:
            self.read()
            return
        if request.head.expects_continue:
            request.connection.send_continue()
        request.connection.resume_reading()

    def take(self, size: int) -> None:
        """Counts bytes: announced bytes before they are sent, others as they come.

        Raises:
            GatewayError: they are too many.
        """
        if size > MAX_BODY_BYTES:
            message = f"body: larger than {MAX_BODY_BYTES} bytes; split it or make it smaller"
            raise GatewayError(413, "too_large", message)
        if self.hold is None or size <= self.hold.size:
            return
        try:
            self.hold.take_up_to(size)
        except BodiesFullError as error:
            raise _bodies_full(error) from error

    def body(self, data: bytes) -> None:
        request = self.request
        if request.state is not RECEIVING:
            return
        keep(self.parts, data)
        self.size += len(data)
        if not self.started:
            request.connection.pause_reading()
            return
        try:
            self.take(self.size)
        except GatewayError as error:
            request.fail(error)

    def end(self) -> None:
        self.complete = True
        if self.started and self.request.state is RECEIVING:
            self.read()

    def read(self) -> None:
        request, body = self.request, self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts = []
        if self.size > LONG_BYTES:
            request.deadline = request.loop.time() + LONG_READ_LIMIT_S
            request.work(self._read_long, body)
            return
        try:
            self.json = JsonBody(read_json(body), body)
        except BadRequestError as error:
            request.refuse(error)
            return
        request.uploaded(self.json.parameters, self.size)

    async def _read_long(self, body: bytes) -> None:
        request = self.request
        try:
            self.json = await request.shared.long_bodies.read(request.key, body)
        except BadRequestError as error:
            request.refuse(error)
        except ChildError:
            request.fail(unavailable("the body could not be read now; try again in a moment"))
        else:
            request.uploaded(self.json.parameters, self.size)

    def late(self) -> None:
        if self.request.principal is None and self.complete:
            self.request.fail(unavailable("the key was not checked in time; try again in a moment"))
        elif self.complete:
            self.request.fail(unavailable("the body was not read in time; try again in a moment"))
        else:
            message = f"body: did not arrive within {UPLOAD_LIMIT_S:g} s; send it again"
            self.request.fail(GatewayError(408, "body_timed_out", message))

    # To a replica

    def send(self, endpoint: Endpoint, server: ClientConnection) -> None:
        request, exchange = self.request, self.request.exchange
        if self.json is None:
            raise AssertionError("the body is not read yet")
        parameters = self.json.parameters
        changed: dict[str, Any] = {}
        name = request.dispatch.engines_name(endpoint, parameters.model)
        if name != parameters.model:
            changed["model"] = name
        exchange.hides_usage = (
            parameters.stream is not None
            and requests_usage(request.path, parameters)
            and request.shared.routes.table.requests_usage(endpoint)
        )
        if exchange.hides_usage:
            changed["stream_options"] = options_with_usage(parameters)
        body = self.json.with_values(changed) if changed or self.json.values is not None else (self.json.content,)
        readable = exchange.hides_usage or request.commented  # an answer that has started has no encoding
        engines_id = id_for_engine(request.head, request.request_id)
        head = forwarded(request.head, endpoint, engines_id, sum(map(len, body)), readable=readable)
        exchange.send(server, head, body)

    def is_bound(self) -> bool:
        return False

    def server_writable(self, *, ready: bool) -> None:
        """Whether the replica takes more of it: it is in memory and under its bound, and waits in the transport."""

    def end_if_late_at_replica(self) -> bool:
        return False

    def returned_lines(self, head: ResponseHead) -> bytes:
        return returned(head)

    # About it

    def digest(self) -> bytes:
        """A digest of the content; empty: it is incomplete."""
        return b"" if self.json is None else self.json.identity()

    def text_bytes(self) -> int:
        return 0 if self.json is None else self.json.count_text()

    def wants_events(self) -> bool:
        return self.json is not None and self.json.parameters.stream is True

    def release(self) -> None:
        """Gives its bytes back, except for the digest: it goes to no other replica."""
        self.digest()
        if self.json is not None:
            self.json.content, self.json.more = b"", ()
        hold, self.hold = self.hold, None
        if hold is not None:
            self.request.shared.bodies.release(hold)

    def drop(self) -> None:
        self.parts.clear()
        hold, self.hold = self.hold, None
        if hold is not None:
            self.request.shared.bodies.release(hold)


def _bodies_full(error: BodiesFullError) -> GatewayError:
    limit = f"{error.limit_bytes // 2**20} MiB"
    if error.of_key:
        message = f"body: this key's requests in flight would hold more than {limit}; wait until others are answered"
        return GatewayError(429, "too_much_in_flight", message)
    return GatewayError(
        503, "overloaded", f"body: all requests in flight would hold more than {limit}; try again in a moment"
    )
