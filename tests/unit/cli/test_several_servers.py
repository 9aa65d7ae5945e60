"""Several controllers: what goes to the next one, and what must not be repeated."""

import http.server
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli.errors import UnreachableError, UsageError
from cli.transport.client import connected
from cli.transport.connection import Connection, find_connection
from cli.transport.contexts import Context, Contexts, changing, contexts_file
from cli.transport.servers import Answer, NoAnswerError, Request, Servers
from http1.tls.issue import issue_server, make_authority

OK = Answer(200, {}, b"{}")
AWAY = Answer(503, {}, b"{}")
REFUSED = NoAnswerError("connection refused", sent=False)
SILENT = NoAnswerError("no answer in time")


class Double:
    """Answers each request alike."""

    def __init__(self, answers: Answer | NoAnswerError, part: bytes = b"") -> None:
        self.asked = 0
        self._answers = answers
        self._part = part

    def exchange(self, request: Request, *, until: float) -> Answer:
        del request, until
        self.asked += 1
        if isinstance(self._answers, NoAnswerError):
            raise self._answers
        return self._answers

    def stream(self, request: Request, *, silence_s: float | None) -> Iterator[Answer | bytes]:
        del request, silence_s
        self.asked += 1
        if self._part:
            yield self._part
        if isinstance(self._answers, NoAnswerError):
            raise self._answers
        if not self._part:
            yield self._answers


def ask(transport: Servers, method: str, headers: Mapping[str, str] | None = None) -> Answer:
    return transport.exchange(Request(method, "/x", headers=headers or {}))


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE", "PATCH"])
def test_what_no_controller_has_seen_goes_to_the_next_one_which_is_kept(method: str) -> None:
    first, second = Double(REFUSED), Double(OK)
    transport = Servers([first, second])
    assert ask(transport, method) == OK
    assert ask(transport, method) == OK
    assert (first.asked, second.asked) == (1, 2)


@pytest.mark.parametrize("trouble", [SILENT, AWAY])
@pytest.mark.parametrize(("method", "repeated"), [("GET", True), ("PUT", True), ("POST", False), ("DELETE", False)])
def test_only_what_may_be_repeated_is(trouble: Answer | NoAnswerError, method: str, repeated: bool) -> None:
    first, second = Double(trouble), Double(OK)
    transport = Servers([first, second])
    if repeated:
        assert ask(transport, method) == OK
    elif isinstance(trouble, NoAnswerError):
        with pytest.raises(NoAnswerError):
            ask(transport, method)
    else:
        assert ask(transport, method) == trouble
    assert second.asked == repeated


def test_a_write_on_a_condition_is_not_repeated() -> None:
    second = Double(OK)
    with pytest.raises(NoAnswerError):
        ask(Servers([Double(SILENT), second]), "PUT", {"If-Match": "3"})
    assert second.asked == 0


def test_each_is_asked_once_where_all_are_away() -> None:
    doubles = [Double(REFUSED), Double(SILENT), Double(REFUSED)]
    with pytest.raises(NoAnswerError):
        ask(Servers(doubles), "GET")
    assert [double.asked for double in doubles] == [1, 1, 1]


def test_a_stream_that_has_begun_ends_with_its_controller() -> None:
    second = Double(OK)
    stream = Servers([Double(SILENT, b"a line"), second]).stream(Request("GET", "/x"))
    assert next(stream) == b"a line"
    with pytest.raises(NoAnswerError):
        next(stream)
    assert second.asked == 0
    assert list(Servers([Double(AWAY), second]).stream(Request("GET", "/x"))) == [OK]


# Real sockets


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"{'http' if context is None else 'https'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def closed() -> str:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_the_client_moves_on(closed: str) -> None:
    with serving() as url:
        several_of_them = Connection(f"{closed},{url}", "key")
        with connected(several_of_them) as api:
            assert api.get("/x") == {}
    with connected(Connection(f"{closed},{closed}", "key")) as api, pytest.raises(UnreachableError, match=" or "):
        api.get("/x")


def test_the_client_verifies_the_controller(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    authority = make_authority(now)
    made = issue_server(authority, ["127.0.0.1"], now)
    file, ca = tmp_path / "server.pem", tmp_path / "ca.crt"
    file.write_bytes(made.certificate + made.key)
    ca.write_bytes(authority.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    with serving(context) as url:
        with connected(Connection(url, "key", ca)) as api:
            assert api.get("/x") == {}
        with connected(Connection(url, "key")) as api, pytest.raises(UnreachableError, match="TLS"):
            api.get("/x")
    with pytest.raises(UsageError, match="GPUWARD_CA"), connected(Connection(url, "key", file.with_name("none"))):
        pass


# Where they are from


def test_addresses_and_authority_come_from_the_environment_and_client_env(tmp_path: Path) -> None:
    given = {"GPUWARD_URL": "https://a/, https://b", "GPUWARD_API_KEY": "k", "GPUWARD_CA": "/ca.crt"}
    assert find_connection(None, None, environ=given) == Connection("https://a,https://b", "k", Path("/ca.crt"))
    (tmp_path / "client.env").write_text("GPUWARD_URL=https://a\nGPUWARD_CA=/own.crt\nGPUWARD_API_KEY=k\n")
    home = {"HOME": str(tmp_path)}
    found = find_connection(None, None, environ=home, data_dirs=[tmp_path])
    assert found == Connection("https://a", "k", Path("/own.crt"))
    assert found.urls == ("https://a",)
    with pytest.raises(UsageError, match="nowhere"):
        find_connection("https://a,nowhere", None, environ={}, data_dirs=[])


def test_a_context_keeps_its_authority(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "GPUWARD_CONTEXT": "main"}
    with changing(contexts_file(environ)) as held:
        held[0] = Contexts().having("main", Context("https://a", "k", Path("/ca.crt")))
    assert find_connection(None, None, environ=environ) == Connection("https://a", "k", Path("/ca.crt"))
