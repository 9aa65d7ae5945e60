"""Deployments that sleep and wake on real processes: requests to them, and what is seen of them."""

import asyncio
import tempfile
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from controller.store.embedded.layout import PORT, Layout
from support.processes.cluster import Cluster

CHAT = "/v1/chat/completions"
SLEEPY = {"replicas": {"min": 0, "max": 1}, "resources": {"gpus": 1}}
QUICK = {"target": 8, "window": "1s", "idle_after": "1s", "down_window": "1s"}


def body(told: str = "tokens=2", model: str = "chat", **more: Any) -> dict[str, Any]:
    """A chat request. `told`: what its prompt tells the simulated engine."""
    return {"model": model, "messages": [{"role": "user", "content": f"[simulate {told}]"}], **more}


async def ask(cluster: Cluster, url: str = "", **fields: Any) -> tuple[int, Any]:
    """Status and answer; the error's code where there is one."""
    async with cluster.session.post((url or cluster.url) + CHAT, json=body(**fields)) as answer:
        content = await answer.json()
        return answer.status, content["error"]["code"] if "error" in content else content


async def begin(cluster: Cluster, *, gpus: int = 8, env: dict[str, str] | None = None, **spec: Any) -> None:
    """A controller, one host, and the sleeping deployment `chat`."""
    await cluster.start_controller(**(env or {}))
    await cluster.start_agent("gpu-1", gpus=gpus)
    await cluster.apply("chat", **{**SLEEPY, **spec})
    await asleep(cluster)


async def asleep(cluster: Cluster, limit_s: float = 40.0) -> None:
    await cluster.until(lambda: cluster.phase_is("chat", "asleep"), "chat is asleep", limit_s)


async def ready_at(cluster: Cluster) -> float:
    """When its replica was ready, in seconds of the wall clock."""

    async def runs() -> Any:
        return [i for i in await cluster.instances("chat") if i["status"]["phase"] == "running"]

    await cluster.until(runs, "a replica runs")
    (instance,) = await runs()
    return datetime.fromisoformat(instance["status"]["phase_since"]).timestamp()


async def events(cluster: Cluster, *reasons: str) -> list[Any]:
    found = (await cluster.get("/events?limit=1000"))["items"]
    return [event for event in reversed(found) if event["reason"] in reasons]


async def sleeps(cluster: Cluster) -> int:
    return len(await events(cluster, "asleep"))


async def ask_many(cluster: Cluster, number: int, **fields: Any) -> list[tuple[int, Any]]:
    """So many requests at once: status and answer, or the error's code."""
    return await asyncio.gather(*(ask(cluster, **fields) for _ in range(number)))


async def epochs(cluster: Cluster, deployment: str = "chat") -> list[int]:
    """How often each of its instances was started."""
    return [one["status"]["epoch"] for one in await cluster.instances(deployment)]


async def gauge(cluster: Cluster, name: str, url: str = "", **labels: str) -> float:
    """The sum of a metric's samples with these labels."""
    async with cluster.session.get(f"{url or cluster.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    found = [line for line in lines if line.startswith((name + "{", name + " "))]
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(one in line for one in wanted))


class Relay:
    """The way of one gateway to the database, which can be cut and restored."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_cut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        if self._is_cut:
            writer.close()
            return
        other_reader, other_writer = await asyncio.open_unix_connection(str(self._target))
        self._writers |= {writer, other_writer}
        await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))

    def cut(self) -> None:
        """Nothing gets through from now on."""
        self._is_cut = True
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    def restore(self) -> None:
        """New connections get through."""
        self._is_cut = False


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


@asynccontextmanager
async def relay(cluster: Cluster) -> AsyncIterator[tuple[Relay, str]]:
    """A way to the database of a controller that has its own, and the URL for it."""
    sockets = Layout(cluster.data_dir).sockets
    name = f".s.PGSQL.{PORT}"
    made = Relay(sockets / name)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # the path of a socket is short
        server = await asyncio.start_unix_server(made.serve, str(Path(folder) / name))
        dsn = Layout(cluster.data_dir).url("postgresql")
        replaced = dsn.replace(urllib.parse.quote(str(sockets), safe=""), urllib.parse.quote(folder, safe=""))
        assert replaced != dsn, dsn
        try:
            yield made, replaced
        finally:
            server.close()
            made.cut()
