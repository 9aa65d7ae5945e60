"""Two controllers behind a real PgBouncer: sessions that are kept serve as PostgreSQL itself, others end the start."""

import socket
from pathlib import Path

import aiohttp
import pytest

from support.database.pooler import PROGRAM, pgbouncer
from support.database.postgres import PostgresServer, create_database, drop_database
from support.processes.controllers import Controllers
from support.processes.faults import RECOVERY_S, SHORT

pytestmark = [
    pytest.mark.cases,
    pytest.mark.skipif(PROGRAM is None, reason="Debian's package pgbouncer is not installed"),
]
TESTS_OWN = "gpuward.who"  # by which the test's controllers name themselves


async def test_session_mode_serves_and_fails_over(data_dir: Path, postgres: PostgresServer) -> None:
    dsn = await create_database(postgres)
    try:
        async with pgbouncer(dsn, pool_mode="session", ignore_startup_parameters=TESTS_OWN) as pooled:
            controllers = Controllers(data_dir, pooled)
            try:
                for name in ("a", "b"):
                    await controllers.start_named(name, **SHORT)
                both = ",".join(f"http://127.0.0.1:{controllers.port_of(name)}" for name in ("a", "b"))
                await controllers.start_agent("w", url=both)
                await controllers.apply("one", engine="simulated", resources={"gpus": 1, "gpu_memory": "1GiB"})
                await controllers.running("one")
                controllers.kill_named("a")
                controllers.through("b")
                await controllers.until(lambda: controllers.leads("b"), "b leads", RECOVERY_S)
                await controllers.apply("two", engine="simulated", resources={"gpus": 1, "gpu_memory": "1GiB"})
                await controllers.start_named("a", **SHORT)
                await controllers.until(lambda: controllers.worker_is("w", "ready"), "w is back", RECOVERY_S)
                await controllers.running("two")
                await controllers.audit()
            finally:
                await controllers.aclose()
    finally:
        await drop_database(postgres, dsn)


async def test_transaction_mode_ends_the_start_with_the_reason(data_dir: Path, database: str) -> None:
    """Of a controller; a gateway runs on without a database, so it says so and is not ready."""
    async with pgbouncer(database, pool_mode="transaction", ignore_startup_parameters=TESTS_OWN) as pooled:
        controllers = Controllers(data_dir, pooled)
        try:
            with pytest.raises(AssertionError, match="controller a ended"):
                await controllers.start_named("a", **SHORT)
            said = controllers.log("controller-a")
            assert "set pool_mode = session for this database in the pooler" in said
            assert "Traceback" not in said
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            argv = ("gateway", "--controller", "http://127.0.0.1:1", "--port", str(port))
            controllers.start("gateway", *argv, GPUWARD_DATABASE_URL=pooled)
            await controllers.until(lambda: "set pool_mode = session" in controllers.log("gateway"), "it says so", 30)
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                assert answer.status == 503
        finally:
            await controllers.aclose()
