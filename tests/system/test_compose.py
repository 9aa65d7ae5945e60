"""What docker-compose.yml relies on, without Docker: its hosts, its scripts, and its services' rights.

tests/compose tries all of it with a Docker engine.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from controller.serving import SOCKET_NAME
from controller.store.access.secret_keys import parse_keys
from gateway.settings import GatewaySettings
from schemas.simulated import SimulatedHosts
from support.processes.cluster import Cluster

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "deploy" / "compose"
HOSTS = SCRIPTS / "simulated-hosts.yaml"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SAID = "up to 100 agents may join within an hour\n"
WAIT_S = 20.0


async def _make_token(cluster: Cluster, file: Path, client_env: Path, *more: str, **env: str) -> tuple[int, str]:
    """Runs the script as the compose file does; returns exit code and output."""
    bin_dir = cluster.folder / "bin"
    bin_dir.mkdir(exist_ok=True)
    (bin_dir / "gpuward").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m cli "$@"\n')
    (bin_dir / "gpuward").chmod(0o755)
    _, most = COMPOSE["services"]["join-token"]["command"]
    process = await asyncio.create_subprocess_exec(
        "sh",
        str(SCRIPTS / "join-token.sh"),
        str(file),
        most if not more else "1",
        *more,
        env={
            "PATH": f"{bin_dir}:/usr/bin:/bin",
            "PYTHONPATH": ":".join(part for part in sys.path if part),
            "GPUWARD_URL": cluster.url,
            "CLIENT_ENV": str(client_env),
            **env,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.cases
async def test_one_token_lets_replicas_join_and_they_outlive_the_key(cluster: Cluster, tmp_path: Path) -> None:
    """The first administrator's key is revoked: nothing that ran before stops at the next start of all services."""
    await cluster.start_controller()
    client_env, file = cluster.data_dir / "client.env", tmp_path / "join-token"
    assert await _make_token(cluster, file, client_env) == (0, SAID)
    first = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    for name in ("gpu-0", "gpu-1"):
        data_dir = str(cluster.folder / f"agent-{name}")
        argv = ["agent", "--controller", cluster.url, "--name", name, "--simulate", str(HOSTS), "--data-dir", data_dir]
        cluster.start(name, *argv, "--join-token-file", str(file))
    for name in ("gpu-0", "gpu-1"):
        await cluster.until(partial(cluster.worker_is, name, "ready"), f"{name} is ready", 60)

    other = (await cluster.post("/keys", {"role": "admin", "name": "mine"}))["key"]
    (key,) = [key["id"] for key in (await cluster.get("/keys"))["items"] if key["name"] == "first"]
    assert (await cluster.call("DELETE", f"/keys/{key}"))[0] == 200

    async def revoked() -> bool:
        return (await cluster.call("GET", "/keys"))[0] == 401

    await cluster.until(revoked, "the key is refused", 5)
    code, output = await _make_token(cluster, file, client_env)
    assert code == 0
    assert "agents that have joined go on with their credentials" in output
    assert file.read_text() == first
    assert await _make_token(cluster, file, client_env, GPUWARD_API_KEY=other) == (0, SAID)
    assert file.read_text() != first


@pytest.mark.cases
async def test_a_replica_takes_a_deleted_workers_number_with_a_token_for_it(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.start_controller()
    client_env, file, name = cluster.data_dir / "client.env", tmp_path / "join-token", "gpu-0"
    data_dir = str(cluster.folder / "agent")
    argv = ["agent", "--controller", cluster.url, "--name", name, "--simulate", str(HOSTS), "--data-dir", data_dir]

    def start(process: str) -> None:
        cluster.start(process, *argv, "--join-token-file", str(file))

    await _make_token(cluster, file, client_env)
    start("first")
    await cluster.until(partial(cluster.worker_is, name, "ready"), "it has joined", 60)
    cluster.processes["first"].terminate()
    await asyncio.to_thread(cluster.processes["first"].wait, 60)
    assert (await cluster.call("DELETE", f"/workers/{name}?confirm_dead=true"))[0] == 204
    await _make_token(cluster, file, client_env)  # as at the next start of all services
    start("second")
    assert await asyncio.to_thread(cluster.processes["second"].wait, 60) == 1
    assert f"gpuward join-token create --name {name}" in cluster.log("second")
    assert (await _make_token(cluster, file, client_env, "--name", name))[0] == 0
    start("third")
    await cluster.until(partial(cluster.worker_is, name, "ready"), "it has joined again", 60)


@pytest.mark.cases
async def test_no_token_is_made_with_a_wrong_key(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.start_controller()
    wrong = tmp_path / "client.env"
    wrong.write_text("GPUWARD_API_KEY=gpw_wrong\n")
    code, output = await _make_token(cluster, tmp_path / "join-token", wrong)
    assert code == 1
    assert "GPUWARD_API_KEY" in output
    assert os.listdir(tmp_path) == ["client.env"]  # noqa: PTH208 - pathlib blocks as much


class Replicas:
    """Copies of deploy/compose/agent.sh, whose agent writes down its arguments, starts an engine, and goes on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        agent = """#!/bin/sh
        : > "$SAID.part"
        for one in "$@"; do echo "$one" >> "$SAID.part"; done
        sleep 60 9>&- &
        mv "$SAID.part" "$SAID"
        wait
        """
        self._program("gpuward", agent)
        self._program("hostname", '#!/bin/sh\necho "$REPLICA"\n')
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def _program(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def start(self, replica: str, most: int = 3) -> subprocess.Popen[bytes]:
        env = {"PATH": f"{self.folder}/bin:/usr/bin:/bin", "REPLICA": replica, "SAID": str(self.folder / replica)}
        (self.folder / replica).unlink(missing_ok=True)
        argv = ["sh", str(SCRIPTS / "agent.sh"), str(self.folder / "volume"), "gpu", str(most), "--on-exit", "stop"]
        with (self.folder / f"{replica}.err").open("wb") as errors:
            process = subprocess.Popen(argv, env=env, stderr=errors, start_new_session=True)
        self.running[replica] = process
        return process

    def worker(self, replica: str) -> str:
        """The name that its agent was given."""
        said, deadline = self.folder / replica, time.monotonic() + WAIT_S
        while not said.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        arguments = said.read_text().splitlines()
        name = arguments[arguments.index("--name") + 1]
        home = f"{self.folder}/volume/{name}"
        assert arguments == [
            *("agent", "--on-exit", "stop", "--name", name, "--data-dir", f"{home}/agent"),
            *("--cache-dir", f"{home}/models"),
        ]
        return name

    def kill(self, replica: str, *, engines: bool = True) -> None:
        process = self.running[replica]
        (os.killpg if engines else os.kill)(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    made = Replicas(tmp_path)
    yield made
    for process in made.running.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)


def test_each_replica_is_a_worker_of_its_own_and_stays_it(replicas: Replicas) -> None:
    for replica in ("a", "b", "c"):
        replicas.start(replica)
    before = {replica: replicas.worker(replica) for replica in ("a", "b", "c")}
    assert set(before.values()) == {"gpu-0", "gpu-1", "gpu-2"}
    replicas.kill("b")
    replicas.kill("c")
    for replica in ("c", "b"):  # the other way round
        replicas.start(replica)
        assert replicas.worker(replica) == before[replica]
    replicas.kill("b", engines=False)
    replicas.start("new")
    assert replicas.worker("new") == before["b"], "an engine that is left holds no lock"


def test_one_replica_too_many_says_so(replicas: Replicas) -> None:
    replicas.start("a", most=1)
    assert replicas.worker("a") == "gpu-0"
    assert replicas.start("b", most=1).wait(WAIT_S) == 1
    assert "all 1 folders are in use; start fewer replicas" in (replicas.folder / "b.err").read_text()


def test_there_is_a_host_and_a_use_of_the_token_for_every_replica() -> None:
    hosts = SimulatedHosts.model_validate(yaml.safe_load(HOSTS.read_text())).expanded()
    _, prefix, most = COMPOSE["services"]["agent"]["command"]
    assert list(hosts) == [f"{prefix}-{number}" for number in range(int(most))]
    file, uses = COMPOSE["services"]["join-token"]["command"]
    assert uses == most
    assert COMPOSE["services"]["agent"]["environment"]["GPUWARD_JOIN_TOKEN_FILE"] == file


def test_one_service_is_built_and_each_has_limits() -> None:
    services = COMPOSE["services"]
    assert [name for name, service in services.items() if "build" in service] == ["controller"]
    for name, service in services.items():
        assert (service["image"] == "${GPUWARD_IMAGE:-gpuward}") == (name != "postgres"), name
        assert {"mem_limit", "pids_limit"} <= set(service), name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name


def test_no_service_has_more_rights_than_it_needs() -> None:
    for name, service in COMPOSE["services"].items():
        assert "privileged" not in service, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert "healthcheck" in service or service["restart"] == "no", name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
    assert COMPOSE["services"]["postgres"]["user"] == "postgres"


def test_the_gateway_alone_has_a_public_port_and_reaches_the_controller_by_its_socket() -> None:
    services = COMPOSE["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["gateway"]
    assert "--no-gateway" in services["controller"]["command"]
    assert services["gateway"]["environment"]["GPUWARD_GATEWAY_PROCESSES"] == "${GPUWARD_GATEWAY_PROCESSES:-1}"
    drain_s = GatewaySettings.model_fields["drain"].default
    assert services["gateway"]["stop_grace_period"] == "11m", "longer than streams may go on"
    assert drain_s < 660
    (socket,) = [one.partition("=")[2] for one in services["gateway"]["command"] if one.startswith("--controller=")]
    folder, _, name = socket.rpartition("/")
    assert name == SOCKET_NAME
    for service in ("controller", "gateway"):
        assert f"controller:{folder}" in services[service]["volumes"], "both have the folder of the socket"


def test_the_database_has_no_network_and_no_password() -> None:
    services = COMPOSE["services"]
    assert services["postgres"]["network_mode"] == "none"
    folder = "/var/run/postgresql"
    assert [name for name, service in services.items() if f"database:{folder}" in service.get("volumes", ())] == [
        "postgres"
    ]
    readers = [name for name, service in services.items() if f"database:{folder}:ro" in service.get("volumes", ())]
    assert readers == ["controller", "gateway"]
    for name in readers:
        assert services[name]["environment"]["GPUWARD_DATABASE_URL"].endswith(f"@/gpuward?host={folder}")
    assert "PASSWORD" not in (ROOT / "docker-compose.yml").read_text()


def test_no_service_waits_for_the_health_of_one_that_turns_unhealthy_with_another() -> None:
    """`docker compose up` ends at once there, so that a stopped controller or database could not be brought back."""
    awaited = {
        awaited
        for service in COMPOSE["services"].values()
        for awaited, condition in service.get("depends_on", {}).items()
        if condition["condition"] == "service_healthy"
    }
    assert awaited == {"postgres", "gateway"}
    *_, code = COMPOSE["services"]["gateway"]["healthcheck"]["test"]
    assert (_probe(code, 200), _probe(code, 503)) == (0, 1)


def _probe(code: str, status: int) -> int:
    """The exit code of a health check that a gateway answers so, without its controller."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz?exclude=controller" else 404)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        server.timeout = 20
        there = code.replace("8420", str(server.server_port))
        with subprocess.Popen([sys.executable, "-c", there]) as process:
            server.handle_request()
            return process.wait(20)


def test_the_image_gets_every_package_of_the_project() -> None:
    copied = set[str]()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        words = line.split()
        if words[:1] == ["COPY"] and not words[1].startswith("--"):
            copied.update(words[1:-1])
    let_through = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == let_through, "a COPY of an ignored path fails the build"
    assert copied >= {package.parent.name for package in ROOT.glob("*/__init__.py") if package.parent.name != "tests"}


def test_the_first_start_makes_a_key_and_later_ones_keep_it(tmp_path: Path) -> None:
    controller = COMPOSE["services"]["controller"]
    named, *arguments = controller["command"]
    assert named == controller["environment"]["GPUWARD_SECRETS_KEY_FILE"]
    volumes = (volume.split(":") for volume in controller["volumes"])
    assert any(Path(named).is_relative_to(at) for name, at, *_ in volumes if name == "controller"), "in its volume"
    (tmp_path / "gpuward").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "gpuward").chmod(0o755)
    file = tmp_path / "secrets.key"

    def start() -> str:
        argv = ["sh", str(SCRIPTS / "controller.sh"), str(file), *arguments]
        done = subprocess.run(
            argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, check=True, timeout=20
        )
        return done.stdout.decode()

    assert start().endswith("controller --no-gateway\n")
    made = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert len(parse_keys(made)) == 1
    assert start() == "controller --no-gateway\n"
    assert file.read_text() == made, "another key would open no stored secret"
