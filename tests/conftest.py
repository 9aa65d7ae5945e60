"""Fixtures for all tests, and the check that a run leaves no process behind."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import structlog

from controller.store.core.database import Database
from support.database.migrated import migrated_database, migrated_template
from support.database.postgres import PostgresServer, create_database, drop_database, quick_folder, running_server
from support.database.prepared import prepared_database
from support.processes.cluster import Prepared
from support.processes.forked import fork_server

_CHILDREN_GO_WITHIN_S = 5.0
# Where tests take long, the longest first: those of `unit` are short and fill what is left at the end of a run.
_LONG = ("machine", "system", "docs", "property", "reconcilers", "store", "runtime", "contract", "programs")

# asyncio makes a loop for a caller that asks for the current one before any was set. Plugins do so before the first
# test and never close it. With the loop set to None, asyncio makes none.
asyncio.set_event_loop(None)
# A shell starts what it runs in the background with SIGINT ignored, and the programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # the same under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def settings_of_logs() -> Iterator[None]:
    """Programs that a test runs within this process may set how lines are logged; the next test has its own."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole run."""
    with running_server() as server:
        yield server


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[str]:
    """The dsn of an empty database for this test."""
    dsn = await create_database(postgres)
    yield dsn
    await drop_database(postgres, dsn)


@pytest.fixture(scope="session")
def template(postgres: PostgresServer) -> str:
    """The name of the migrated database that tests get copies of."""
    return migrated_template(postgres)


@pytest.fixture
async def migrated(postgres: PostgresServer, template: str) -> AsyncIterator[Database]:
    """A migrated database for this test, open."""
    async with migrated_database(postgres, template) as database:
        yield database


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """An empty data folder that an embedded PostgreSQL can use, under any account."""
    with quick_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def prepared() -> Iterator[Prepared]:
    """What `Cluster` starts from, so that its first start takes a third of the time."""
    with prepared_database() as folder, fork_server() as programs:
        yield Prepared(folder, programs)


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end, so garbage is not sought among them, which takes half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Has several processes begin with the long tests, so that none waits for the last test of another.

    Each file keeps the order of its tests: the last one may judge what the others have met.
    """
    if hasattr(config, "workerinput"):
        longest: dict[Path, float] = {}
        for item in items:
            longest[item.path] = max(longest.get(item.path, 0.0), _timeout_s(item))
        items.sort(key=lambda item: (_room(item.path), -longest[item.path]))


def _room(path: Path) -> int:
    room = path.relative_to(Path(__file__).parent).parts[0]
    return _LONG.index(room) if room in _LONG else len(_LONG)


def _timeout_s(item: pytest.Item) -> float:
    """What takes long has a longer one of its own."""
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark else 0.0


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
