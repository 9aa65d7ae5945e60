"""A Docker engine of a test's own, from unpacked packages, on a socket in a folder of its own."""

import asyncio
import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiodocker
import psutil

ENGINE = Path(__file__).parents[3] / ".docker-engine"
READY_S = 40.0
HOOK = """#!/bin/sh
[ "$1" = prestart ] || exit 0
while [ -e {calls}-held ]; do sleep 0.1; done
{ printf '%s ' "$@"; cat; echo; } >> {calls}
"""


class Dockerd:
    """One engine.

    `toolkit`: it finds a false NVIDIA hook, which only writes down how it is called. `storage`: drivers for its images,
    of which it takes the first that works here. `hub`: URL of a registry that stands in for Docker Hub.
    """

    def __init__(
        self,
        folder: Path,
        *,
        toolkit: bool = True,
        bridge: bool = True,
        storage: tuple[str, ...] = ("vfs",),
        hub: str | None = None,
    ) -> None:
        self.folder = folder
        self.socket = folder / "d.sock"
        self.address = f"unix://{self.socket}"
        self.calls = folder / "hook-calls"
        self._toolkit = toolkit
        self._bridge = bridge
        self._storage = storage
        self._hub = hub
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Where its programs and their libraries are."""
        root, programs = ENGINE / "root", self.folder / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name in ("iptables", "ip6tables"):
            if not (programs / name).is_symlink():
                (programs / name).symlink_to(root / "usr/sbin/xtables-nft-multi")
        if self._toolkit:
            hook = programs / "nvidia-container-runtime-hook"
            hook.write_text(HOOK.replace("{calls}", str(self.calls)))
            hook.chmod(0o755)
        libraries = [str(path) for path in root.glob("usr/lib/*-linux-gnu")]
        libraries += [str(path) for path in root.glob("lib/*-linux-gnu")]
        tables = next(root.glob("usr/lib/*-linux-gnu/xtables"), root)
        path = [str(programs), str(root / "usr/bin"), str(root / "usr/sbin"), os.environ["PATH"]]
        return {
            "PATH": ":".join(path),
            "LD_LIBRARY_PATH": ":".join(libraries),
            "XTABLES_LIBDIR": str(tables),
        }

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            RuntimeError: it ends, or does not answer; the message is its last line.
        """
        for driver in self._storage[:-1]:
            try:
                self._start(driver)
            except RuntimeError:
                continue
            self._storage = (driver,)
            return
        self._start(self._storage[-1])

    def _start(self, storage: str) -> None:
        options = [] if self._bridge else ["--iptables=false", "--bridge=none", "--ip-masq=false"]
        options += [] if self._hub is None else [f"--registry-mirror={self._hub}"]
        environment = self.environment()
        found = shutil.which("dockerd", path=str(ENGINE / "root/usr/sbin"))
        if found is None:
            raise RuntimeError("no dockerd")
        with (self.folder / "dockerd.log").open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(found, "--storage-driver", storage, "--live-restore"),
                    *("--data-root", str(self.folder / "D"), "--exec-root", str(self.folder / "R")),
                    *("-p", str(self.folder / "pid"), "-H", self.address, *options),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + READY_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                lines = (self.folder / "dockerd.log").read_text(errors="replace").strip().splitlines()
                self.kill()
                raise RuntimeError(next(reversed(lines), "it said nothing"))
            time.sleep(0.1)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("docker", timeout=2)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(2)
        try:
            connection.sock.connect(str(self.socket))
            connection.request("GET", "/_ping")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def stop(self) -> None:
        """Ends it; containers run on."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills it; containers run on."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if number is signal.SIGKILL:
            (self.folder / "pid").unlink(missing_ok=True)
            self._end_containerd()

    def _end_containerd(self) -> None:
        """A killed engine leaves its containerd, which the next one would find; it ends too, the containers do not."""
        file = self.folder / "R/containerd/containerd.pid"
        try:
            pid = int(file.read_text())
            os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            return
        for _ in range(100):
            if not Path(f"/proc/{pid}").exists():
                return
            time.sleep(0.05)

    def sweep_up(self) -> None:
        """Removes its folder, and what is still mounted in it."""
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for place in reversed(mounts):
            if Path(place).is_relative_to(self.folder):
                subprocess.run(["umount", "--lazy", place], check=False, stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """It takes connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    @contextmanager
    def hanging_starts(self) -> Iterator[None]:
        """A start of a container with GPUs hangs in NVIDIA's hook, as where a driver hangs."""
        held = self.calls.with_name(f"{self.calls.name}-held")
        held.touch()
        try:
            yield
        finally:
            held.unlink(missing_ok=True)

    async def clear(self) -> None:
        """Removes all containers."""
        async with asyncio.timeout(60), aiodocker.Docker(self.address) as docker:
            for one in await docker.containers.list(all=True):
                await one.delete(force=True, v=True)

    async def networks(self, label: str) -> list[dict[str, object]]:
        """All networks with this label."""
        async with asyncio.timeout(20), aiodocker.Docker(self.address) as docker:
            return await docker.networks.list(filters={"label": [label]})

    async def remove_networks(self, label: str) -> None:
        """Removes all networks with this label."""
        async with asyncio.timeout(20), aiodocker.Docker(self.address) as docker:
            for one in await docker.networks.list(filters={"label": [label]}):
                await aiodocker.networks.DockerNetwork(docker, one["Id"]).delete()

    async def containers(self) -> list[str]:
        """The names of all containers."""
        async with asyncio.timeout(20), aiodocker.Docker(self.address) as docker:
            return [one["Names"][0].lstrip("/") for one in await docker.containers.list(all=True)]

    async def inspect(self, name: str) -> dict[str, object]:
        """What it knows of a container."""
        async with asyncio.timeout(20), aiodocker.Docker(self.address) as docker:
            return await docker.containers.container(name).show()

    def environments(self, pid: int) -> str:
        """The environment of a process and of its children."""
        pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        return "\n".join(Path(f"/proc/{one}/environ").read_text().replace("\0", "\n") for one in pids)

    async def until_containers(self, count: int) -> None:
        """Waits until it has so many containers."""
        async with asyncio.timeout(READY_S):
            while len(await self.containers()) != count:  # noqa: ASYNC110 - it is asked
                await asyncio.sleep(0.1)
