"""Hosts with addresses of their own on this machine: network namespaces, joined by a bridge in another one.

The machine's own network is not touched. All namespaces end with the process that made them.
"""

import os
import shutil
import subprocess
from contextlib import ExitStack
from typing import Final, Self

SUBNET: Final = "198.18.77"  # of the networks for measurements (RFC 2544)
_LIMIT_S: Final = 20
_NOWHERE: Final = "02:00:00:00:00:01"  # no host's


def missing() -> str:
    """What this machine lacks for it; empty: nothing."""
    if os.geteuid():
        return "only root makes network namespaces"
    for tool in ("ip", "tc", "nsenter", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    tried = subprocess.run(
        ["unshare", "-n", "ip", "link", "add", "name", "br0", "type", "bridge"],
        capture_output=True,
        timeout=_LIMIT_S,
        check=False,
    )
    return tried.stderr.decode().strip() if tried.returncode else ""


class Hosts:
    """A context: hosts by name, which reach one another at `address`."""

    def __init__(self, *names: str) -> None:
        self._addresses = {name: f"{SUBNET}.{n}" for n, name in enumerate(names, 1)}
        self._pids: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._make("switch", stack)
            self._in("switch", "ip", "link", "add", "name", "br0", "type", "bridge")
            self._in("switch", "ip", "link", "set", "br0", "up")
            for name, address in self._addresses.items():
                self._make(name, stack)
                port = f"to-{name}"
                peer = ("peer", "name", "eth0", "netns", str(self._pids[name]))
                self._in("switch", "ip", "link", "add", "name", port, "type", "veth", *peer)
                self._in("switch", "ip", "link", "set", port, "master", "br0", "up")
                self._in(name, "ip", "address", "add", f"{address}/24", "dev", "eth0")
                for link in ("lo", "eth0"):
                    self._in(name, "ip", "link", "set", link, "up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, name: str) -> str:
        """A host's address."""
        return self._addresses[name]

    def prefix(self, name: str) -> tuple[str, ...]:
        """What stands before a command line that shall run on this host."""
        return ("nsenter", f"--net=/proc/{self._pids[name]}/ns/net")

    def cut(self, sender: str, receiver: str) -> None:
        """From now on what one host sends to the other is lost, and neither is told. The way back stays open."""
        to = ("to", self._addresses[receiver], "lladdr", _NOWHERE, "dev", "eth0", "nud", "permanent")
        self._in(sender, "ip", "neighbour", "replace", *to)

    def heal(self, sender: str, receiver: str) -> None:
        """Ends a cut."""
        self._in(sender, "ip", "neighbour", "del", "to", self._addresses[receiver], "dev", "eth0")

    def slow_down(self, name: str, kbit_per_s: int) -> None:
        """A host sends no faster from now on; what waits for longer than two seconds is lost."""
        rate = ("rate", f"{kbit_per_s}kbit", "burst", "3000", "latency", "2s")
        self._in(name, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *rate)

    def speed_up(self, name: str) -> None:
        """Ends that."""
        self._in(name, "tc", "qdisc", "del", "dev", "eth0", "root")

    def _make(self, name: str, stack: ExitStack) -> None:
        # Its standard input ends with this process, and it and its namespace with that.
        holder = stack.enter_context(
            subprocess.Popen(["unshare", "-n", "sh", "-c", "echo ready; cat"], stdin=-1, stdout=-1)
        )
        if holder.stdin is None or holder.stdout is None:
            raise AssertionError("it was started with pipes")
        stack.callback(holder.stdin.close)
        assert holder.stdout.readline() == b"ready\n"
        self._pids[name] = holder.pid

    def _in(self, name: str, *argv: str) -> None:
        done = subprocess.run([*self.prefix(name), *argv], capture_output=True, timeout=_LIMIT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)} on {name}: {done.stderr.decode().strip()}")
