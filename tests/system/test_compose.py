"""What docker-compose.yml relies on, without Docker: its hosts, its token script, and its services' rights."""

import asyncio
import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from controller.api_socket import FILE_NAME
from gateway.settings import GatewaySettings
from schemas.simulated import SimulatedHosts
from support.processes.cluster import Cluster

ROOT = Path(__file__).parents[2]
HOSTS = ROOT / "deploy" / "simulated-hosts.yaml"
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
WORKERS = ["gpu-1", "gpu-2"]


async def _make_tokens(cluster: Cluster, folder: Path, client_env: Path, **env: str) -> tuple[int, str]:
    """Runs the script as the compose file does; returns exit code and output."""
    bin_dir = cluster.folder / "bin"
    bin_dir.mkdir(exist_ok=True)
    (bin_dir / "gpuward").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m cli "$@"\n')
    (bin_dir / "gpuward").chmod(0o755)
    process = await asyncio.create_subprocess_exec(
        "sh",
        str(ROOT / "deploy" / "join-tokens.sh"),
        str(folder),
        *COMPOSE["services"]["join-tokens"]["command"],
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
async def test_the_script_makes_tokens_only_for_hosts_that_have_not_joined(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.start_controller()
    client_env = cluster.data_dir / "client.env"
    assert await _make_tokens(cluster, tmp_path, client_env) == (0, "gpu-1 may join\ngpu-2 may join\n")
    first = {name: (tmp_path / name).read_text() for name in WORKERS}
    assert len(set(first.values())) == 2
    assert {(tmp_path / name).stat().st_mode & 0o777 for name in WORKERS} == {0o600}

    data_dir = str(cluster.folder / "agent-gpu-1")
    argv = ["agent", "--controller", cluster.url, "--name", "gpu-1", "--simulate", str(HOSTS), "--data-dir", data_dir]
    cluster.start("gpu-1", *argv, "--join-token-file", str(tmp_path / "gpu-1"))
    await cluster.until(lambda: cluster.worker_is("gpu-1", "ready"), "gpu-1 is ready", 60)

    assert await _make_tokens(cluster, tmp_path, client_env) == (0, "gpu-1 has joined already\ngpu-2 may join\n")
    assert (tmp_path / "gpu-1").read_text() == first["gpu-1"]
    assert (tmp_path / "gpu-2").read_text() != first["gpu-2"]


@pytest.mark.cases
async def test_the_script_makes_nothing_with_a_wrong_key(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.start_controller()
    wrong = tmp_path / "client.env"
    wrong.write_text("GPUWARD_API_KEY=gpw_wrong\n")
    code, output = await _make_tokens(cluster, tmp_path, wrong)
    assert code == 1
    assert "GPUWARD_API_KEY" in output
    assert not any((tmp_path / name).exists() for name in WORKERS)


@pytest.mark.cases
async def test_hosts_that_have_a_token_outlive_the_key(cluster: Cluster, tmp_path: Path) -> None:
    """The first administrator's key is revoked: nothing that ran before stops at the next start of all services."""
    await cluster.start_controller()
    client_env = cluster.data_dir / "client.env"
    assert (await _make_tokens(cluster, tmp_path, client_env))[0] == 0
    other = (await cluster.post("/keys", {"role": "admin", "name": "mine"}))["key"]
    (first,) = [key["id"] for key in (await cluster.get("/keys"))["items"] if key["name"] == "first"]
    assert (await cluster.call("DELETE", f"/keys/{first}"))[0] == 200

    async def revoked() -> bool:
        return (await cluster.call("GET", "/keys"))[0] == 401

    await cluster.until(revoked, "the key is refused", 5)
    code, output = await _make_tokens(cluster, tmp_path, client_env)
    assert code == 0
    assert output.count("was given a token at an earlier start") == 2
    code, output = await _make_tokens(cluster, tmp_path, client_env, GPUWARD_API_KEY=other)
    assert (code, output) == (0, "gpu-1 may join\ngpu-2 may join\n")


def test_every_agent_has_its_host_and_its_token() -> None:
    agents = {
        name: service for name, service in COMPOSE["services"].items() if service.get("command", ())[:1] == ["agent"]
    }
    assert sorted(agents) == sorted(SimulatedHosts.model_validate(yaml.safe_load(HOSTS.read_text())).expanded())
    assert sorted(agents) == sorted(COMPOSE["services"]["join-tokens"]["command"])
    for name, service in agents.items():
        assert service["command"] == ["agent", f"--name={name}"]
        assert service["environment"]["GPUWARD_JOIN_TOKEN_FILE"] == f"/run/gpuward/{name}"


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
    assert name == FILE_NAME
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
    for alone, status in ((True, 0), (False, 1)):
        assert (
            _probe(code, {"ready": False, "checks": {"controller": {"ok": False}, "gateway": {"ok": alone}}}) == status
        )


def _probe(code: str, body: object) -> int:
    """The exit code of a health check where `/readyz` answers 503 with this body."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(503)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

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
