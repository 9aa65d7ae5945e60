"""Fixtures that every folder of tests may use, and the check that a test run leaves no process behind."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from support.database.postgres import PostgresServer, create_database, drop_database, reachable_folder, running_server

_CHILDREN_GO_WITHIN_S = 5.0

# Asked for the current loop where none was ever set, asyncio makes one. Plugins ask before the first test, and nobody
# closes what they get; told that there is none, asyncio makes none.
asyncio.set_event_loop(None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole run."""
    with running_server() as server:
        yield server


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[str]:
    """The dsn of an empty database of the test's own."""
    dsn = await create_database(postgres)
    yield dsn
    await drop_database(postgres, dsn)


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty data folder that an embedded PostgreSQL can use, whoever runs the tests."""
    with reachable_folder() as folder:
        yield folder


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails a run that leaves child processes behind."""
    _, left = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=_CHILDREN_GO_WITHIN_S)
    if left:
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        for child in left:
            reporter.write_line(f"left running: {child.pid} {_command_line(child)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return "(gone meanwhile)"
