"""The ways to an engine that bench-gateway compares, and their costs."""

import asyncio
import json
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil

from support.processes.cluster import Cluster

BENCH = Path(__file__).parent
START_LIMIT_S = 20.0
ORDER_LIMIT_S = 180.0
NGINX_CONF = """\
daemon off; master_process off; pid nginx.pid; error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 1m; keepalive_requests 100000000;
  client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_read_timeout 1h;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Way:
    """A way to the engine, with its port and its processes."""

    name: str
    port: int
    processes: Callable[[], list[psutil.Process]]
    key: str = ""

    def cpu_s(self) -> float:
        """Seconds of CPU that its processes have used."""
        return sum(cpu_s(process) for process in self.processes())

    def memory_bytes(self) -> int:
        """The memory of its processes. A page that several share counts once."""
        return sum(process.memory_full_info().pss for process in self.processes())


def cpu_s(process: psutil.Process) -> float:
    """Seconds on a CPU, in nanoseconds' steps: the kernel's ticks are too coarse."""
    total = 0
    for stat in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            total += int(stat.read_text().split()[0])
    return total / 1e9


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def answers(port: int) -> None:
    """Waits until something accepts connections there."""
    async with asyncio.timeout(START_LIMIT_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


class Processes:
    """Processes of the bench's own, which it ends."""

    def __init__(self) -> None:
        self._started: list[asyncio.subprocess.Process] = []

    async def start(self, *argv: str, **options: Any) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(*argv, **options)
        self._started.append(process)
        return process

    async def aclose(self) -> None:
        for process in self._started:
            if process.returncode is None:
                process.kill()
            await process.wait()


class Load:
    """A load generator's process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, processes: Processes) -> Self:
        pipe = asyncio.subprocess.PIPE
        return cls(await processes.start(sys.executable, str(BENCH / "gateway_load.py"), stdin=pipe, stdout=pipe))

    async def send(self, way: Way, kind: str, count: int, body: dict[str, Any], **order: Any) -> dict[str, Any]:
        """Carries an order out. Raises `AssertionError`: an answer was wrong; the message has the first."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        head = {"kind": kind, "count": count, "port": way.port, "key": way.key, "path": "/v1/chat/completions"}
        self._process.stdin.write(json.dumps({**head, "body": body, **order}).encode() + b"\n")
        async with asyncio.timeout(ORDER_LIMIT_S):
            result: dict[str, Any] = json.loads(await self._process.stdout.readline())
        assert not result["errors"], f"{way.name}: {result['errors']} wrong answers, first: {result['error']}"
        return result


async def nginx(processes: Processes, engine_port: int, folder: Path) -> Way | None:
    """Starts nginx as one hop; None where it is not installed."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        return None
    home, port = folder / "nginx", free_port()
    (home / "temp").mkdir(parents=True)
    (home / "nginx.conf").write_text(NGINX_CONF.format(engine=engine_port, port=port))
    process = await processes.start(program, "-p", str(home), "-c", "nginx.conf")
    await answers(port)
    return Way("nginx", port, lambda: [psutil.Process(process.pid)])


async def reference(processes: Processes, engine_port: int) -> Way:
    """The plain proxy as one hop."""
    port = free_port()
    process = await processes.start(sys.executable, str(BENCH / "reference_proxy.py"), str(port), str(engine_port))
    await answers(port)
    return Way("reference", port, lambda: [psutil.Process(process.pid)])


def gateways(cluster: Cluster) -> list[psutil.Process]:
    """The gateway's processes; the controller's where the gateway has none."""
    controller = psutil.Process(cluster.processes["controller"].pid)
    processes = [child for child in controller.children(recursive=True) if "gateway" in child.cmdline()]
    for name, process in cluster.processes.items():
        processes += family(process.pid) if name.startswith("gateway") else []
    return processes or [controller]


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


async def gpuward(cluster: Cluster, agent: str) -> Way:
    """Gpuward's way: the public port, the gateway, the agent's port."""
    key = (await cluster.post("/keys", {"role": "inference", "name": "bench"}))["key"]
    host = psutil.Process(cluster.processes[agent].pid)
    return Way("gpuward", cluster.port, lambda: [*gateways(cluster), host], key)


def engine_port(cluster: Cluster) -> int:
    (engine,) = cluster.engines().values()
    argv = engine.cmdline()
    return int(argv[argv.index("--port") + 1])
