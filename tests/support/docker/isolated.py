"""Gets a Docker engine from Debian's packages, unpacked into a folder, and runs the tests of a folder with it.

It needs root, apt-get and dpkg, and installs nothing. The engine and the tests run in namespaces of their own, so that
no rule, mount or address of the host changes. Where any of that cannot be had, the tests are skipped, loudly.
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from support.docker.dockerd import Dockerd

PROJECT: Final = Path(__file__).parents[3]
ENGINE: Final = PROJECT / ".docker-engine"
# The engine, and the libraries that a small system may lack.
PACKAGES: Final = (
    "docker.io", "containerd", "runc", "iptables", "tini", "libip4tc2", "libip6tc2", "libxtables12",
    "libnetfilter-conntrack3", "libnftnl11", "libnfnetlink0", "libmnl0", "libdevmapper1.02.1", "libseccomp2",
)  # fmt: skip
_DOWNLOAD_LIMIT_S: Final = 300
_SIOCGIFFLAGS: Final = 0x8913
_SIOCSIFFLAGS: Final = 0x8914
_UP: Final = 1


def run_isolated(tests: str, prepare: Callable[[], None] | None = None) -> int:
    """Runs the tests of this folder of the project; the program's arguments are pytest's.

    `prepare` runs before, in the namespaces of this process, where networks can be reached. The calling program is
    started again inside of the new namespaces. Returns the exit code of the tests; 0 where they are skipped.
    """
    if "--inside" in sys.argv:
        return _inside([tests, *(argument for argument in sys.argv[1:] if argument != "--inside")])
    missing = [name for name in ("apt-get", "dpkg", "unshare") if shutil.which(name) is None]
    if sys.platform != "linux" or os.geteuid() != 0 or missing:
        return _skip(f"this needs Linux, root, and {', '.join(missing) or 'Debian packages'}")
    try:
        _unpack()
        if prepare is not None:
            prepare()
    except (OSError, subprocess.SubprocessError) as error:
        return _skip(f"a Docker engine and what it needs cannot be had: {error}")
    unshare = ["unshare", "--net", "--mount", "--propagation", "private"]
    if subprocess.run([*unshare, "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        return _skip("no namespaces can be made here")
    return subprocess.run([*unshare, sys.executable, sys.argv[0], "--inside", *sys.argv[1:]], check=False).returncode


def _unpack() -> None:
    """Once: the mark is set last."""
    if (ENGINE / "ready").exists():
        return
    shutil.rmtree(ENGINE, ignore_errors=True)
    (ENGINE / "debs").mkdir(parents=True)
    for attempt in range(2):
        done = subprocess.run(
            ["apt-get", "download", *PACKAGES],
            cwd=ENGINE / "debs",
            check=attempt == 1,
            timeout=_DOWNLOAD_LIMIT_S,
            stdout=subprocess.DEVNULL,
        )
        if done.returncode == 0:
            break
        subprocess.run(["apt-get", "update", "-qq"], check=True, timeout=_DOWNLOAD_LIMIT_S)
    for package in sorted((ENGINE / "debs").glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, ENGINE / "root"], check=True, timeout=_DOWNLOAD_LIMIT_S)
    shutil.rmtree(ENGINE / "debs")
    (ENGINE / "ready").touch()


def _inside(arguments: list[str]) -> int:
    """Within the namespaces: tries the engine, then runs the tests."""
    _raise_loopback()
    with tempfile.TemporaryDirectory(prefix="gpuward-docker-", ignore_cleanup_errors=True) as folder:
        probe = Dockerd(Path(folder))
        try:
            probe.start()
        except (RuntimeError, OSError) as error:
            return _skip(f"a Docker engine does not start here: {error}")
        probe.stop()
        probe.sweep_up()
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=PROJECT, check=False).returncode


def _raise_loopback() -> None:
    """A new network namespace has its loopback interface down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        name = struct.pack("16sh", b"lo", 0)
        (flags,) = struct.unpack("16xh", fcntl.ioctl(control, _SIOCGIFFLAGS, name)[:18])
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _UP))


def _skip(why: str) -> int:
    line = "*" * 100
    sys.stdout.write(f"{line}\nSKIPPED: the tests with a Docker engine were NOT run: {why}\n{line}\n")
    return 0
