"""The load generator of bench-gateway, a process of its own: raw protocols on uvloop; it checks every answer.

Each line of stdin is an order (JSON), each line of stdout its outcome. Kinds of orders: `requests`, `streams`, `hold`,
`release`. The process ends with its stdin.
"""

import asyncio
import json
import re
import sys
import time
from typing import Any, cast

import httptools
import uvloop

STAMP = re.compile(rb'"monotonic_s": ([0-9.]+)')
LIMIT_S = 120.0


class Conversation(asyncio.Protocol):
    """A connection that sends requests and reads their answers until its time is over, or `once`."""

    def __init__(self, request: bytes, until_s: float, *, once: bool) -> None:
        self._request = request
        self._until_s = until_s
        self._once = once
        self._parser: Any = None
        self._sent_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._events = 0
        self._answer = b""
        self._done = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first_event: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.took_s: list[float] = []
        self.delays_s: list[float] = []
        self.events: list[int] = []
        self.errors: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._rest, self._events, self._answer, self._done = b"", 0, b"", False
        self._sent_s = time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"malformed: {error!r}")

    def on_body(self, body: bytes) -> None:
        if self._once:
            now_s = time.monotonic()
            *blocks, self._rest = (self._rest + body).split(b"\n\n")
            for block in blocks:
                if (stamp := STAMP.search(block)) is not None:
                    self._events += 1
                    self.delays_s.append(now_s - float(stamp[1]))
                    if not self.first_event.done():
                        self.first_event.set_result(None)
                else:
                    self._done = self._done or block == b"data: [DONE]"
        else:
            self._answer += body

    def on_message_complete(self) -> None:
        now_s = time.monotonic()
        if (status := self._parser.get_status_code()) != 200:
            self._end(f"status {status}: {self._answer[:200]!r}")
        elif self._once:
            self.events.append(self._events)
            self._end(None if self._done else "the stream has no [DONE]")
        elif b'"choices"' not in self._answer or not self._answer.endswith(b"}"):
            self._end(f"not the answer: {self._answer[:200]!r}")
        else:
            self.took_s.append(now_s - self._sent_s)
            if now_s < self._until_s:
                self._send()
            else:
                self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection ended early: {exc!r}")

    def close(self) -> None:
        """Ends it early, which is not counted as an error."""
        self._end(None)

    def _end(self, error: str | None) -> None:
        if not self.ended.done():
            if error is not None:
                self.errors.append(error)
            self.ended.set_result(None)
            if not self.first_event.done():
                self.first_event.set_result(None)
        if self._transport is not None:
            self._transport.abort()


def head(order: dict[str, Any], body: bytes) -> bytes:
    lines = [f"POST {order['path']} HTTP/1.1", "Host: bench", f"Authorization: Bearer {order['key']}"]
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


async def open_all(order: dict[str, Any], count: int, *, once: bool) -> list[Conversation]:
    loop = asyncio.get_running_loop()
    body = json.dumps(order["body"]).encode()
    until_s = time.monotonic() + order.get("seconds", 0.0)

    async def open_one() -> Conversation:
        made = lambda: Conversation(head(order, body), until_s, once=once)  # noqa: E731 - asyncio's factory
        return (await loop.create_connection(made, "127.0.0.1", order["port"]))[1]

    return [await open_one() for _ in range(count)]


def quantile(values: list[float], share: float) -> float:
    """The value below which this share lies; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def outcome(conversations: list[Conversation]) -> dict[str, Any]:
    took = [s for c in conversations for s in c.took_s]
    delays = [s for c in conversations for s in c.delays_s]
    errors = [error for c in conversations for error in c.errors]
    return {
        "requests": len(took),
        "p50_s": quantile(took, 0.5),
        "p99_s": quantile(took, 0.99),
        "events": len(delays),
        "least_events": min((n for c in conversations for n in c.events), default=0),
        "delay_p50_s": quantile(delays, 0.5),
        "delay_p99_s": quantile(delays, 0.99),
        "errors": len(errors),
        "error": errors[0] if errors else None,
    }


async def carry_out(order: dict[str, Any], held: list[Conversation]) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_S):
        match order["kind"]:
            case "requests" | "streams":
                once = order["kind"] == "streams"
                conversations = await open_all(order, order["count"], once=once)
                await asyncio.gather(*(c.ended for c in conversations))
                return outcome(conversations)
            case "hold":
                held += await open_all(order, order["count"], once=True)
                await asyncio.gather(*(c.first_event for c in held))
                return outcome(held)
            case _:
                ended = outcome(held)
                for conversation in held:
                    conversation.close()
                held.clear()
                return ended


async def main() -> None:
    reader = asyncio.StreamReader(limit=2**24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    held: list[Conversation] = []
    while line := await reader.readline():
        try:
            result = await carry_out(json.loads(line), held)
        except (OSError, TimeoutError) as error:
            result = {"errors": 1, "error": repr(error)}
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    uvloop.run(main())
