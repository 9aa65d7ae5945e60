"""An engine that refuses fields that it does not know serves streams all the same; their tokens are estimated."""

import asyncio
import sys

from support.processes.cluster import Cluster
from support.processes.served_models import CHAT, USER, bearer, listed, make_key, serve

SERVER = """
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.reply(200, "application/json", b"{}")
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        print("asked", json.dumps(sorted(asked)), flush=True)
        unknown = sorted(set(asked) - {"model", "messages", "stream"})
        if unknown:
            self.reply(422, "application/json", json.dumps({"detail": "extra inputs: " + ", ".join(unknown)}).encode())
        else:
            event = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\\n\\n'
            self.reply(200, "text/event-stream", event * 3 + b"data: [DONE]\\n\\n")
    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


async def test_streams_of_a_strict_engine_are_served_and_estimated(cluster: Cluster) -> None:
    command = [sys.executable, "-c", SERVER, "{port}"]
    await serve(cluster, chat={"engine": "custom", "command": command, "probe": {"path": "/"}})
    await listed(cluster, "chat")
    key = await make_key(cluster)

    async def stream() -> str:
        body = {"model": "chat", "messages": USER, "stream": True}
        async with cluster.session.post(CHAT, json=body, headers=bearer(key)) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()

    first = await stream()
    assert first.count("choices") == 3
    assert await asyncio.gather(*(stream() for _ in range(4))) == [first] * 4
    (instance,) = await cluster.instances("chat")
    async with cluster.session.get(f"/api/v1/instances/{instance['name']}/logs") as answer:
        asked = [line for line in (await answer.text()).splitlines() if "asked" in line]
    assert sum("stream_options" in line for line in asked) == 1, "the replica is asked once"

    async def counted() -> bool:
        report = await cluster.get("/usage?since=1h")
        return sum(one["requests"] for one in report["items"]) == 5 and all(
            one["estimated"] == one["requests"] for one in report["items"]
        )

    await cluster.until(counted, "all are counted, and marked as estimated")
