"""The client, against a server that is told its bytes."""

import http.client
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from cli.errors import CliError, NotFoundError, UnreachableError, UsageError
from cli.transport import servers
from cli.transport.client import Api, connected
from cli.transport.connection import Connection

WHOLE = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\nX-Gpuward-Outcome: created\r\n\r\n{"a": 12}'
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a":\r\n4\r\n 12}\r\n0\r\n\r\n'
TO_THE_END = b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"a": 12}'
WHOLE_AND_CLOSED = WHOLE.replace(b"Content-Length", b"Connection: close\r\nContent-Length")
NOT_FOUND = b'{"error": {"code": "not_found", "message": "no worker is named nope", "details": {}}}'


def request_of(connection: socket.socket) -> bytes:
    request = b""
    while True:
        request += connection.recv(65536)
        head, _, body = request.partition(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        if b"\r\n\r\n" in request and len(body) == (int(length[1]) if length else 0):
            return request


class Server:
    """Answers each connection's requests with the next of its answers, then closes it."""

    def __init__(self, *connections: list[bytes], pause_s: float = 0.0) -> None:
        self.requests: list[bytes] = []
        self._connections = connections
        self._pause_s = pause_s
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(20)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def serve(self) -> None:
        for answers in self._connections:
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(20)
                for answer in answers:
                    self.requests.append(request_of(connection))
                    with suppress(OSError):  # the client left
                        for part in self._parts(answer):
                            connection.sendall(part)
                            time.sleep(self._pause_s)

    def _parts(self, answer: bytes) -> list[bytes]:
        return [answer[at : at + 1] for at in range(len(answer))] if self._pause_s else [answer]

    def close(self) -> None:
        self._socket.close()


@contextmanager
def served(*connections: list[bytes], pause_s: float = 0.0) -> Iterator[Server]:
    server = Server(*connections, pause_s=pause_s)
    thread = threading.Thread(target=server.serve, name="server", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        thread.join(20)
        server.close()


def get(api: Api, path: str = "/api/v1/x", **query):
    return api.get(path, **query)


class ClosesItself(http.client.HTTPResponse):
    """As of Python 3.11.8 and 3.12.2: it is closed once all that its length states was read."""

    def read1(self, n: int = -1) -> bytes:
        part = super().read1(n)
        if self.length == 0 and self.fp is not None:
            self._close_conn()
        return part


@pytest.mark.parametrize("response", [http.client.HTTPResponse, ClosesItself])
@pytest.mark.parametrize(
    "answer", [WHOLE, CHUNKED, TO_THE_END, WHOLE_AND_CLOSED], ids=["length", "chunks", "to the end", "length, close"]
)
def test_each_framing_is_read(answer, response, monkeypatch):
    monkeypatch.setattr(http.client.HTTPConnection, "response_class", response)
    with served([answer]) as server, connected(Connection(server.url + "/prefix", "key")) as api:
        assert get(api, limit=3, cursor=None, name="a b") == {"a": 12}
    (request,) = server.requests
    assert request.startswith(b"GET /prefix/api/v1/x?limit=3&name=a+b HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer key\r\n" in request


def test_a_connection_is_used_again_while_it_is_fresh(monkeypatch):
    with served([WHOLE, CHUNKED], [WHOLE]) as server, connected(Connection(server.url, None)) as api:
        assert get(api) == get(api) == {"a": 12}
        monkeypatch.setattr(servers, "_REUSED_S", -1.0)
        assert api.apply("/api/v1/x", {"b": 1}) == ({"a": 12}, "created")
    assert server.requests[2].endswith(b'{"b":1}')
    assert b"Content-Type: application/json\r\n" in server.requests[2]
    assert not any(b"Authorization" in request for request in server.requests)


def test_a_connection_that_the_server_has_closed_is_not_used_again():
    with served([WHOLE], [WHOLE]) as server, connected(Connection(server.url, None)) as api:
        assert get(api) == {"a": 12}
        kept = api.servers._servers[0]._connection.sock
        assert select.select([kept], [], [], 20)[0], "the server closes it"
        assert get(api) == {"a": 12}


def test_what_tls_refuses_is_told():
    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            connection, _ = plain.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(WHOLE)

        thread = threading.Thread(target=answer, name="plain", daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{plain.getsockname()[1]}"
        with connected(Connection(url, None)) as api, pytest.raises(UnreachableError, match="TLS: "):
            get(api)
        thread.join(20)


@pytest.mark.parametrize(
    ("url", "host", "port"), [("http://[::1]", "::1", 80), ("https://h", "h", 443), ("http://h:1", "h", 1)]
)
def test_a_url_names_host_and_port(url, host, port):
    with connected(Connection(url, None)) as api:
        assert (api.servers._servers[0]._connection.host, api.servers._servers[0]._connection.port) == (host, port)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (WHOLE[:-3], "the answer was cut off"),
        (CHUNKED[:-12], "the answer was cut off"),
        (b"", "closed connection without response"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0"),
    ],
    ids=["length", "chunks", "nothing", "another protocol"],
)
def test_an_answer_that_is_none_is_told(answer, message):
    with (
        served([answer]) as server,
        connected(Connection(server.url, None)) as api,
        pytest.raises(UnreachableError, match=message),
    ):
        get(api)


def test_a_server_that_drips_is_left_after_the_deadline(monkeypatch):
    monkeypatch.setattr(servers, "ANSWER_S", 0.5)
    began = time.monotonic()
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n" + b" " * 60
    with served([body], pause_s=0.02) as server, connected(Connection(server.url, None)) as api:
        with pytest.raises(UnreachableError, match="no answer in time"):
            get(api)
        assert time.monotonic() - began < 10


def test_a_request_ends_at_the_deadline_of_its_client():
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with connected(Connection(url, None)) as api:
            api.deadline = began + 0.3
            with pytest.raises(UnreachableError, match="no answer in time"):
                get(api)
    assert time.monotonic() - began < 10


def test_a_client_that_is_closed_ends_the_request_of_another_thread():
    failed = []

    def ask() -> None:
        with pytest.raises(CliError) as refused:
            get(api)
        failed.append(refused.value)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        with connected(Connection(f"http://127.0.0.1:{silent.getsockname()[1]}", None)) as api:
            thread = threading.Thread(target=ask, name="asking", daemon=True)
            thread.start()
            accepted, _ = silent.accept()
            accepted.recv(65536)
        thread.join(20)
        accepted.close()
    assert failed
    with pytest.raises(CliError, match="closed"):
        get(api)


def test_a_stream_that_falls_silent_has_ended():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                request_of(connection)
                connection.sendall(CHUNKED[:-12])
                connection.recv(65536)

        thread = threading.Thread(target=answer, name="silent", daemon=True)
        thread.start()
        with connected(Connection(url, None)) as api:
            parts = api.stream("/api/v1/x", silence_s=0.3)
            assert next(parts)
            with pytest.raises(UnreachableError, match=r"is silent for 0\.3 s"):
                next(parts)
        thread.join(20)


def test_nothing_listens_there():
    with connected(Connection("http://127.0.0.1:1", None)) as api, pytest.raises(UnreachableError, match="refused"):
        get(api)


def test_refusals_and_redirects_are_told():
    refused = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n%b" % (len(NOT_FOUND), NOT_FOUND)
    moved = b"HTTP/1.1 301 Moved\r\nLocation: https://elsewhere/\r\nContent-Length: 0\r\n\r\n"
    page = b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>"
    with served([refused, moved, page]) as server, connected(Connection(server.url, None)) as api:
        with pytest.raises(NotFoundError, match="no worker is named nope"):
            get(api)
        with pytest.raises(CliError, match="redirects to https://elsewhere/"):
            get(api)
        with pytest.raises(CliError, match="not a Gpuward controller"):
            get(api)


def test_a_stream_ends_with_its_chunks():
    with served([CHUNKED]) as server, connected(Connection(server.url, None)) as api:
        assert b"".join(api.stream("/api/v1/x")) == b'{"a": 12}'


@pytest.mark.parametrize(
    ("url", "key", "message"),
    [
        ("http://:8420", None, "names no host"),
        ("http://host:99999", None, "is not a valid URL"),
        ("http://[::1", None, "is not a valid URL"),
        ("http://a b", None, "is not a valid URL"),
        ("http://host", "gpw_1\r\nX-Other: 1", "characters that no key has"),
        ("http://host", "gpw_ü", "characters that no key has"),
    ],
)
def test_what_no_request_can_be_made_of_is_refused(url, key, message):
    with pytest.raises(UsageError, match=message), connected(Connection(url, key)):
        pass
