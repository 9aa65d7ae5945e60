"""Clients that send without end as fast as they are read, in a process of their own, and read no answer.

Usage: python unending_senders.py PORT SECONDS CONNECTIONS

stdin holds a JSON object: {"first": BASE64, "again": BASE64, "upgrade": BOOL}. Each connection sends the first bytes,
waits for the head of an upgrade's answer where it is one, and sends the others again and again. A connection that ends
is opened anew. stdout gets how many bytes were sent and how many connections made: {"sent": 1, "connections": 1}.
"""

import asyncio
import base64
import json
import socket
import sys
import threading
import time
from dataclasses import dataclass

_PAUSE_S = 0.05  # before a connection is opened anew
_END_LIMIT_S = 20.0


@dataclass(frozen=True)
class Sends:
    """What each connection sends. `upgrade`: the first bytes ask for a WebSocket."""

    first: bytes
    again: bytes
    upgrade: bool = False

    def to_json(self) -> bytes:
        """The line of stdin."""
        texts = {"first": base64.b64encode(self.first).decode(), "again": base64.b64encode(self.again).decode()}
        return json.dumps({**texts, "upgrade": self.upgrade}).encode()


@dataclass
class Sent:
    """What was sent over how many connections; those that were refused an upgrade are none."""

    sent: int = 0
    connections: int = 0


async def send(port: int, sends: Sends, seconds: float, connections: int = 4) -> Sent:
    """Sends for so long."""
    argv = (sys.executable, __file__, str(port), str(seconds), str(connections))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe)
    try:
        async with asyncio.timeout(seconds + _END_LIMIT_S):
            out, _ = await process.communicate(sends.to_json())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    return Sent(**json.loads(out))


def _send(port: int, sends: Sends, until: float, sent: Sent) -> None:
    while (left_s := until - time.monotonic()) > 0:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=left_s) as connection:
                _send_on(connection, sends, until, sent)
        except OSError:
            time.sleep(_PAUSE_S)


def _send_on(connection: socket.socket, sends: Sends, until: float, sent: Sent) -> None:
    head, _, frames = sends.first.partition(b"\r\n\r\n") if sends.upgrade else (b"", b"", b"")
    connection.sendall(head + b"\r\n\r\n" if sends.upgrade else sends.first)
    if sends.upgrade and b" 101 " not in connection.recv(4096).partition(b"\r\n")[0]:
        raise ConnectionError("no upgrade")
    sent.connections += 1
    connection.sendall(frames)
    while (left_s := until - time.monotonic()) > 0:
        connection.settimeout(left_s)
        connection.sendall(sends.again)
        sent.sent += len(sends.again)


def main(port: int, seconds: float, connections: int) -> None:
    """Sends, and prints what was sent."""
    fields = json.load(sys.stdin)
    first, again = (base64.b64decode(fields[name]) for name in ("first", "again"))
    sends, sent = Sends(first, again, fields["upgrade"]), Sent()
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=_send, args=(port, sends, until, sent)) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    json.dump(vars(sent), sys.stdout)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
