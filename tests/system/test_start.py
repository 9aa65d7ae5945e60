"""Daemons that wait at their start: what they log, how soon they heed a stop, and when they end by themselves."""

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from support.database.gate import DatabaseGate, gate_to
from support.processes.cluster import Cluster

HEEDED_S = 1.0
SLACK_S = 5.0  # of a machine that runs ten other things
STARTS_S = 60.0
ENDS_S = 45.0  # below the minute for which it would wait


@pytest.fixture(autouse=True)
def imports(cluster: Cluster) -> None:
    """A stop may come while a daemon imports its modules."""
    cluster.import_at_each_start()


@pytest.fixture
async def gate(database: str) -> AsyncIterator[DatabaseGate]:
    async with gate_to(database) as opened:
        yield opened


def start(cluster: Cluster, url: str, **env: str) -> None:
    argv = ("controller", "--data-dir", str(cluster.data_dir), "--port", "0")
    cluster.start("controller", *argv, GPUWARD_DATABASE_URL=url, **env)


async def logs(cluster: Cluster, text: str, name: str = "controller") -> None:
    await cluster.until(lambda: text in cluster.log(name), f"{name} logs {text!r}", STARTS_S)


async def is_stopped(cluster: Cluster, name: str = "controller") -> None:
    """Sends SIGTERM; it must end soon, with 0 and without a trace."""
    process, began = cluster.processes[name], time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, ENDS_S) == 0, cluster.log(name)
    took_s = time.monotonic() - began
    assert took_s < HEEDED_S + SLACK_S, cluster.log(name)
    assert "Traceback" not in cluster.log(name)


async def ends(cluster: Cluster, *words: str) -> str:
    """Waits until it ends by itself with code 1; returns its log, which has these words and no trace."""
    process, began = cluster.processes["controller"], time.monotonic()
    assert await asyncio.to_thread(process.wait, 60) == 1
    text = cluster.log("controller")
    assert time.monotonic() - began < ENDS_S, text
    assert "Traceback" not in text
    assert "controller ended" in text
    for word in words:
        assert word in text
    return text


async def _refuses(gate: DatabaseGate) -> str:
    await gate.close()
    return gate.dsn


async def _hangs(gate: DatabaseGate) -> str:
    gate.freeze()
    return gate.dsn


async def _has_no_address(gate: DatabaseGate) -> str:
    return gate.dsn.replace("127.0.0.1", "nowhere.invalid")


@pytest.mark.parametrize(
    "how",
    [
        _hangs,
        pytest.param(_refuses, marks=pytest.mark.cases),
        pytest.param(_has_no_address, marks=pytest.mark.cases),
    ],
)
async def test_a_controller_that_waits_for_its_database_says_so_and_heeds_sigterm(
    cluster: Cluster, gate: DatabaseGate, how: Callable[[DatabaseGate], Awaitable[str]]
) -> None:
    start(cluster, await how(gate))
    await logs(cluster, "waiting for the database")
    await is_stopped(cluster)


@pytest.mark.cases
async def test_it_starts_once_the_database_is_there(cluster: Cluster, gate: DatabaseGate) -> None:
    await gate.close()
    start(cluster, gate.dsn)
    await logs(cluster, "waiting for the database")
    await gate.open()
    await cluster.until(cluster._leads, "the controller leads", STARTS_S)
    await is_stopped(cluster)


@pytest.mark.cases
async def test_a_database_that_hangs_in_the_migration_does_not_delay_the_stop(
    cluster: Cluster, gate: DatabaseGate
) -> None:
    connection = await asyncpg.connect(gate.dsn)
    try:
        await connection.execute("select pg_advisory_lock(7309446271)")  # as another controller that migrates
        start(cluster, gate.dsn)
        await logs(cluster, "waiting for another controller's migration")
        gate.freeze()
        await is_stopped(cluster)
    finally:
        connection.terminate()


@pytest.mark.cases
async def test_a_database_that_goes_away_before_client_env_is_written(cluster: Cluster, gate: DatabaseGate) -> None:
    """It waits and says so, is not ready meanwhile, heeds SIGTERM, and makes the key at the next start."""
    owner = await asyncpg.connect(gate.dsn)
    start(cluster, gate.dsn)
    await cluster.until(cluster._leads, "the controller leads", STARTS_S)
    await is_stopped(cluster)
    file = cluster.data_dir / "client.env"
    file.unlink()
    async with owner.transaction():
        await owner.execute("delete from api_keys")
    await owner.execute("begin")
    await owner.execute("select pg_advisory_xact_lock(7309446272)")  # as another controller that makes the key
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = ("controller", "--data-dir", str(cluster.data_dir), "--port", str(port))
    cluster.start("controller", *argv, GPUWARD_DATABASE_URL=gate.dsn)

    async def check() -> dict[str, Any] | None:
        try:
            async with cluster.session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                body = await answer.json()
                assert (answer.status == 200) <= file.exists()
                return dict(body["checks"]["client_env"])
        except OSError:
            return None

    async def not_ready() -> bool:
        return (await check() or {}).get("ok") is False

    await cluster.until(not_ready, "it is not ready", STARTS_S)
    assert not file.exists()
    await is_stopped(cluster)
    await owner.execute("rollback")
    await owner.close()
    cluster.start("controller", *argv, GPUWARD_DATABASE_URL=gate.dsn)

    async def ready() -> bool:
        return (await check() or {}).get("ok") is True

    await cluster.until(ready, "it is ready", STARTS_S)
    assert "GPUWARD_API_KEY=gpw_" in file.read_text()
    await is_stopped(cluster)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sesame@h:port/db",
        *(
            pytest.param(url, marks=pytest.mark.cases)
            for url in (
                "mysql://u:sesame@h/db",
                "postgresql://u:ses/ame@h:5432/db",
                "postgresql://u:sesame@[::1/db",
                "postgresql://u:sesame@h/db?sslmode=perhaps",
            )
        ),
    ],
)
async def test_a_malformed_url_ends_it_at_once_without_the_password(cluster: Cluster, url: str) -> None:
    start(cluster, url)
    assert "ame" not in (
        await ends(cluster, "GPUWARD_DATABASE_URL", "postgresql://user:password@host:5432/db")
    ).replace("name", "")


@pytest.mark.cases
async def test_a_missing_database_ends_it_at_once(cluster: Cluster, gate: DatabaseGate) -> None:
    start(cluster, gate.dsn + "-missing")
    await ends(cluster, "does not exist", "create it")


@pytest.mark.cases
async def test_missing_rights_end_it_at_once(cluster: Cluster, gate: DatabaseGate, database: str) -> None:
    owner = await asyncpg.connect(database)
    await owner.execute("revoke all on schema public from pg_database_owner, public")
    await owner.close()
    start(cluster, gate.dsn)
    await ends(cluster, "denies a right", "owner")


@pytest.mark.cases
async def test_a_wrong_password_ends_it_at_once(cluster: Cluster) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A server that asks for a password and refuses it, as PostgreSQL does."""
        startup = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big") - 4)
        if startup[:4] == (80877103).to_bytes(4, "big"):  # a request for TLS
            writer.write(b"N")
            await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big") - 4)
        writer.write(b"R" + (8).to_bytes(4, "big") + (3).to_bytes(4, "big"))
        await reader.readexactly(1)
        given = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big") - 4)
        assert given == b"sesame\0"
        fields = b'SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user "u"\0\0'
        writer.write(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    try:
        start(cluster, f"postgresql://u:sesame@127.0.0.1:{server.sockets[0].getsockname()[1]}/db")
        assert "sesame" not in await ends(cluster, "password authentication failed", "check user and password")
    finally:
        server.close()


@pytest.mark.cases
async def test_the_embedded_database_does_not_delay_a_stop_at_the_start(cluster: Cluster) -> None:
    cluster.start("controller", "controller", "--data-dir", str(cluster.data_dir), "--port", "0")
    await cluster.until((cluster.data_dir / "postgres").exists, "the cluster is being made", STARTS_S)
    await asyncio.sleep(0.3)
    process, began = cluster.processes["controller"], time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(process.wait, ENDS_S) == 0, cluster.log("controller")
    assert time.monotonic() - began < 3 + SLACK_S
    assert "Traceback" not in cluster.log("controller")
    await cluster.start_controller()  # nothing half made is left in the way


@pytest.mark.cases
async def test_a_client_env_that_cannot_be_written_ends_it_with_the_reason(cluster: Cluster, database: str) -> None:
    (cluster.data_dir / "client.env").mkdir(parents=True)
    start(cluster, database)
    await ends(cluster, "client.env cannot be written")


@asynccontextmanager
async def silent_server() -> AsyncIterator[asyncio.Server]:
    """Accepts connections on loopback and never answers."""
    open_ones = []

    async def hold(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.append(writer)

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    try:
        yield server
    finally:
        server.close()
        for writer in open_ones:
            writer.transport.abort()
        await asyncio.sleep(0.1)  # the transports close in later rounds of the loop


@pytest.mark.cases
@pytest.mark.parametrize("how", ["refuses", "is silent", "has no address"])
@pytest.mark.parametrize("joined", [False, True])
async def test_an_agent_that_dials_its_controller_heeds_sigterm(cluster: Cluster, how: str, joined: bool) -> None:
    if joined:
        await cluster.start_controller()
        await cluster.start_agent("host")
        cluster.kill("host")
        cluster.kill("controller")
    else:
        (cluster.folder / "host.yaml").write_text(
            "workers: [{name: host, gpus: [{model: X, memory: 8GiB, count: 1}]}]", encoding="utf-8"
        )
    async with silent_server() as server:
        port = server.sockets[0].getsockname()[1]
        if how == "refuses":
            server.close()
        host = "nowhere.invalid" if how == "has no address" else "127.0.0.1"
        argv = ["agent", "--controller", f"http://{host}:{port}", "--name", "host"]
        argv += ["--simulate", str(cluster.folder / "host.yaml"), "--data-dir", str(cluster.folder / "agent-host")]
        cluster.start("again", *argv, "--join-token", "gpj_any")
        await logs(cluster, "agent started" if how == "is silent" else "controller unreachable", "again")
        await is_stopped(cluster, "again")
