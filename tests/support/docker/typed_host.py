"""A host on which a page's lines are typed: a container whose first process is systemd."""

import subprocess
import time
from typing import Self

from support.docker.compose import Compose

LIMIT_S = 300.0
READY_S = 60.0
# What systemd needs to confine services; `--privileged` asks for rights that this machine may lack itself.
_RIGHTS = (
    "SYS_ADMIN", "SYS_PTRACE", "SYS_CHROOT", "NET_ADMIN", "SETPCAP", "IPC_LOCK", "DAC_READ_SEARCH", "SYS_NICE",
)  # fmt: skip


class Host:
    """It has a release in /opt/release, read-only, and nothing else of Gpuward."""

    def __init__(self, compose: Compose, name: str, image: str, *, network: str = "none", alias: str = "") -> None:
        self.name = name
        self._compose = compose
        self._image = image
        self._network = ["--network", network, *(["--network-alias", alias] if alias else [])]

    def start(self) -> None:
        """Starts it, and waits until systemd has started all else."""
        project = self._compose.project
        mounts = ["-v", f"{project}/dist:/opt/release:ro"]
        room = ["--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec"]  # noqa: S108 - the container's
        rights = [f"--cap-add={one}" for one in _RIGHTS]
        rights += ["--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"]
        rights += ["--env=container=docker", "--volume=/sys/fs/cgroup:/sys/fs/cgroup"]
        self._docker(
            "run", "--detach", "--name", self.name, "--hostname", self.name, *self._network, *mounts, *room, *rights,
            self._image, "/sbin/init",
        )  # fmt: skip
        deadline = time.monotonic() + READY_S
        while "running" not in (state := self.types("systemctl is-system-running || true")) and "degraded" not in state:
            assert time.monotonic() < deadline, state
            time.sleep(0.2)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def types(self, lines: str, *, given: str = "", user: str = "root") -> str:
        """What a login shell prints that begins in the home folder; `given` is its standard input.

        Raises:
            AssertionError: a line fails; the message is what was printed.
        """
        shell = ["bash", "-leuxo", "pipefail", "-c", f"cd\n{lines}"]
        return self._docker("exec", "--interactive", f"--user={user}", self.name, *shell, given=given)

    def journal(self) -> str:
        """The last lines of all services."""
        return self.types("journalctl --no-pager --lines=60 || true")

    def remove(self) -> None:
        """Ends and removes it."""
        self._docker("rm", "--force", "--volumes", self.name)

    def _docker(self, *argv: str, given: str = "") -> str:
        done = subprocess.run(
            ["docker", *argv],
            env=self._compose.environment(),
            input=given,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"on {self.name}: {argv[-1]}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout
