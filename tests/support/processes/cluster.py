"""A cluster of real processes: a controller with embedded PostgreSQL, and agents with simulated GPUs."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml

from support.database.prepared import begin_with
from support.processes.forked import ForkedProcess, ForkServer

READY_S = 60.0
STOP_S = 20.0
POLL_S = 0.02
Json = dict[str, Any]
Process = subprocess.Popen[bytes] | ForkedProcess


@dataclass(frozen=True)
class Prepared:
    """Saves work at starts: an embedded database to copy, and a process that has imported the programs."""

    database: Path
    programs: ForkServer


class Cluster:
    """Starts and kills processes and calls the API. All files lie in one folder; `aclose` ends all processes.

    Args:
        folder: an empty one.
        prepared: saves work; without it each program imports its modules, and the controller makes its database.
    """

    def __init__(self, folder: Path, prepared: Prepared | None = None) -> None:
        self.folder = folder
        self._database = prepared and prepared.database
        self._programs = prepared and prepared.programs
        self.data_dir = folder / "controller"
        self.processes: dict[str, Process] = {}
        self.port = 0
        self._session: aiohttp.ClientSession | None = None
        self.prefix: tuple[str, ...] = ()  # argv before that of each process
        self._module = self._current = "cli"
        self._path = tuple(p for p in sys.path if p)

    # Processes

    def run_code(self, module: str = "", source: Path | None = None) -> None:
        """From now on processes run this module, or this version; `source` has another version's packages."""
        self._module = module or self._current
        self._path = tuple(p for p in sys.path if p) if source is None else (str(source),)
        if source is not None:
            self._database = None

    def use_rig(self) -> None:
        """From now on engines are the rig's (`rig.engine`), and manifests may have its args."""
        self._module = self._current = "rig.gpuward"

    def import_at_each_start(self) -> None:
        """From now on programs are started by their own command line, for tests of the start itself."""
        self._programs = None

    def start(self, name: str, *argv: str, **env: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUWARD_")}
        whole = {**clean, "PYTHONPATH": os.pathsep.join(self._path), **env}
        with (self.folder / f"{name}.log").open("ab") as log:
            if self._programs is not None and self._can_fork(env):
                self.processes[name] = self._programs.start(self._module, argv, whole, log)
                return
            self.processes[name] = subprocess.Popen(
                [*self.prefix, sys.executable, "-P", "-m", self._module, *argv],
                env=whole,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _can_fork(self, env: Mapping[str, str]) -> bool:
        """Other variables than Gpuward's may be for the interpreter or the loader, which read them at an exec."""
        ours = self._path == tuple(p for p in sys.path if p)
        return ours and not self.prefix and all(name.startswith("GPUWARD_") for name in env)

    async def start_controller(self, **env: str) -> None:
        """Starts it, on the port that it had before, and waits until it leads."""
        database, self._database = self._database, None
        if database is not None and "GPUWARD_DATABASE_URL" not in env and not self.data_dir.exists():
            begin_with(database, self.data_dir)
        self.start("controller", "controller", "--data-dir", str(self.data_dir), "--port", str(self.port), **env)
        await self.until(self._leads, "the controller leads", READY_S)

    async def _leads(self) -> bool:
        if self.processes["controller"].poll() is not None:
            raise AssertionError(f"the controller ended: {self.log('controller')}")
        file = self.data_dir / "client.env"
        if not file.exists():
            return False
        values = dict(line.split("=", 1) for line in file.read_text().splitlines())
        if "GPUWARD_API_KEY" not in values:
            return False
        self.port = int(values["GPUWARD_URL"].rsplit(":", 1)[1])
        if self._session is None:
            self._session = self._open_session(values)
        try:
            return bool((await self.get("/leader"))["leading"])
        except (aiohttp.ClientError, AssertionError):
            return False

    def _open_session(self, values: Mapping[str, str]) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            base_url=values["GPUWARD_URL"],
            connector=self._connector(),
            headers={"Authorization": f"Bearer {values['GPUWARD_API_KEY']}"},
            timeout=aiohttp.ClientTimeout(total=30),
        )

    def _connector(self) -> aiohttp.BaseConnector:
        return aiohttp.TCPConnector()

    async def start_agent(
        self,
        name: str,
        *,
        gpus: int = 8,
        memory: str = "40GiB",
        ready: bool = True,
        url: str | None = None,
        host: Json | None = None,
        **env: str,
    ) -> None:
        """Starts an agent with simulated GPUs; it joins at its first start.

        `url` is the controller's, or a load balancer's; `host` adds to the simulated host.
        """
        kind = {"model": "NVIDIA A100", "memory": memory, "count": gpus}
        hosts = {"workers": [{"name": name, "gpus": [kind], **(host or {})}]}
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(hosts))
        argv = ["agent", "--controller", url or self.url, "--name", name, "--simulate", str(file)]
        folder = self.folder / f"agent-{name}"
        if not folder.exists():
            token = (await self.post("/tokens", {}))["token"]
            argv += ["--join-token", token]
        self.start(name, *argv, "--data-dir", str(folder), **env)
        if ready:
            await self.until(lambda: self.worker_is(name, "ready"), f"{name} is ready", READY_S)

    def gateway_parent(self) -> psutil.Process:
        """The controller's gateway: the process that forks those which serve."""
        children = psutil.Process(self.processes["controller"].pid).children()
        (parent,) = [one for one in children if "gateway" in one.cmdline()]
        return parent

    def gateway(self) -> psutil.Process:
        """The one process that serves in the controller's gateway."""
        (found,) = self.gateway_parent().children()
        return found

    def proxy_port(self, agent: str) -> int:
        """Where that agent's proxy serves; of several starts the last."""
        log = (self.folder / f"{agent}.log").read_text()
        return int(log.rpartition("proxy_port=")[2].split()[0])

    def signal(self, name: str, number: signal.Signals) -> None:
        self.processes[name].send_signal(number)

    def kill(self, name: str) -> None:
        """Sends SIGKILL, as a crash."""
        process = self.processes.pop(name)
        process.kill()
        process.wait(STOP_S)

    def log(self, name: str) -> str:
        return self.whole_log(name)[-4000:]

    def whole_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def engines(self) -> dict[str, psutil.Process]:
        """Running engine processes of this cluster, by instance."""
        found: dict[str, psutil.Process] = {}
        for process in psutil.process_iter():
            try:
                env = process.environ()
            except (psutil.Error, OSError):
                continue
            here = env.get("GPUWARD_AGENT_DIR", "").startswith(str(self.folder))
            if here and "GPUWARD_INSTANCE" in env and process.status() != psutil.STATUS_ZOMBIE:
                found[env["GPUWARD_INSTANCE"]] = process
        return found

    # API

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.session.request(method, f"/api/v1{path}", json=body) as response:
            return response.status, await response.json(content_type=None)

    async def get(self, path: str) -> Any:
        status, body = await self.call("GET", path)
        assert status == 200, body
        return body

    async def post(self, path: str, body: Any = None) -> Any:
        status, answer = await self.call("POST", path, body)
        assert status in (200, 201), answer
        return answer

    async def apply(self, name: str, **spec: Any) -> Json:
        status, answer = await self.call("PUT", f"/deployments/{name}", {"engine": "simulated", **spec})
        assert status in (200, 201), answer
        return dict(answer)

    async def delete(self, name: str) -> None:
        status, answer = await self.call("DELETE", f"/deployments/{name}")
        assert status in (200, 202, 204), answer

    async def instances(self, deployment: str | None = None) -> list[Json]:
        items = (await self.get("/instances?limit=1000"))["items"]
        return [i for i in items if deployment is None or i["spec"]["deployment"] == deployment]

    async def phases(self, deployment: str) -> list[str]:
        return sorted(i["status"]["phase"] for i in await self.instances(deployment))

    async def phase_of(self, deployment: str) -> str:
        status, body = await self.call("GET", f"/deployments/{deployment}")
        return body["status"]["phase"] if status == 200 else "gone"

    async def phase_is(self, deployment: str, phase: str) -> bool:
        return await self.phase_of(deployment) == phase

    async def worker_is(self, name: str, phase: str) -> bool:
        status, body = await self.call("GET", f"/workers/{name}")
        return status == 200 and body["status"]["phase"] == phase

    async def audit(self) -> None:
        """Checks the invariants."""
        result = await self.get("/audit")
        assert result["ok"], result["violations"]

    # Waiting

    async def until(self, seen: Callable[[], Any], what: str, limit_s: float = 20.0) -> float:
        """Waits until `seen()` (or what it awaits) is true; returns the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < limit_s:
            answer = seen()
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer:
                return time.monotonic() - began
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"not within {limit_s:g} s: {what}\n{await self._picture()}")

    async def running(self, deployment: str, limit_s: float = 30.0) -> float:
        async def runs() -> bool:
            return await self.phase_of(deployment) == "running"

        return await self.until(runs, f"{deployment} runs", limit_s)

    async def gone(self, deployment: str, limit_s: float = 30.0) -> float:
        async def left() -> bool:
            return await self.phase_of(deployment) == "gone" and not await self.instances(deployment)

        return await self.until(left, f"{deployment} is gone", limit_s)

    async def _picture(self) -> str:
        logs = "\n".join(f"--- {name}\n{self.log(name)}" for name in self.processes)
        try:
            return f"{[(i['name'], i['status']) for i in await self.instances()]}\n{logs}"
        except (aiohttp.ClientError, AssertionError, TimeoutError) as error:
            return f"{error}\n{logs}"

    async def aclose(self) -> None:
        """Ends agents first, so that they stop their engines, then the rest; kills what does not end."""
        if self._session is not None:
            await self._session.close()
        agents = [p for n, p in self.processes.items() if not n.startswith("controller")]
        for group in (agents, list(self.processes.values())):
            for process in group:
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
                    process.terminate()
            for process in group:
                try:
                    await asyncio.to_thread(process.wait, STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        for process in self.engines().values():
            process.kill()
