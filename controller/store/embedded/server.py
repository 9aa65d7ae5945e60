"""Starts, watches and stops the embedded PostgreSQL; does not handle its contents."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncpg
import structlog

from controller.store.embedded.accounts import Account, choose_account, current_account
from controller.store.embedded.installation import EmbeddedPostgresError, Installation
from controller.store.embedded.layout import Layout
from controller.store.embedded.prepare import make_cluster, prepare_folders, reachable_binaries, write_config
from controller.store.embedded.processes import clear_leftovers, start_server

_log = structlog.get_logger(__name__)

_READY_DEADLINE_S = 120.0  # recovery after a crash reads back up to max_wal_size
_PROBE_DEADLINE_S = 5.0
_PROBE_PAUSE_S = 0.02
_STOP_STEPS: tuple[tuple[signal.Signals, float], ...] = (
    (signal.SIGINT, 5.0),  # fast shutdown: roll back, write a checkpoint
    (signal.SIGQUIT, 3.0),  # immediate shutdown: commits are durable, the next start recovers
)
_BACKOFF_FIRST_S = 0.1
_BACKOFF_MOST_S = 5.0
_STABLE_AFTER_S = 30.0
_LOG_EVERY_S = 60.0


class EmbeddedPostgres:
    """The PostgreSQL server in the data folder: `async with EmbeddedPostgres(folder) as server`.

    A server that exits is restarted, with growing delays. It is killed when the thread that started it ends, so start
    it from a thread that lives as long as the process.

    Args:
        data_dir: the controller's data folder; created if missing. Everything is in its subfolder `postgres`.
        account: for root, the account that PostgreSQL runs as; by default the owner of an existing cluster, else the
            first existing one of gpuward, postgres and nobody.
        extra_settings: PostgreSQL parameters that override ours, for tests, which may do without `fsync`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        account: str | None = None,
        extra_settings: Mapping[str, str] | None = None,
    ) -> None:
        self._layout = Layout(data_dir.absolute().resolve())
        self._wanted_account = account
        self._extra_settings = dict(extra_settings or {})
        self._lock: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._ready_since: float | None = None
        self._restarts = 0
        self._last_error: str | None = None

    @property
    def dsn(self) -> str:
        return self._layout.url("postgresql")

    @property
    def running(self) -> bool:
        """Whether the server is up and has answered since its latest start."""
        return self._ready_since is not None and self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def restarts(self) -> int:
        return self._restarts

    @property
    def last_error(self) -> str | None:
        """The error of the latest restart; None if it succeeded."""
        return self._last_error

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts the server, creating the cluster first if needed; returns once it answers.

        Raises:
            EmbeddedPostgresError: the start failed; no process is left running.
        """
        try:
            account, binaries = await self._prepare()
            await self._launch(account, binaries)
        except OSError as error:
            await self.stop()
            raise EmbeddedPostgresError(
                f"the data folder {self._layout.data_dir} cannot be used: {error}; choose another one by --data-dir",
            ) from error
        except BaseException:
            await self.stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise(account, binaries), name="embedded-postgres")

    async def stop(self) -> None:
        """Stops the server and all its processes, and releases the data folder. May be called twice."""
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])  # it ends at its next await: it suppresses no cancel
            self._supervisor = None
        try:
            await self._end_server()
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    async def _prepare(self) -> tuple[Account, Installation]:
        layout = self._layout
        layout.check_socket_path()
        account = choose_account(layout.cluster, self._wanted_account)
        await prepare_folders(layout, account)
        if self._lock is None:
            self._lock = layout.take_lock()
        await clear_leftovers(layout)
        binaries = await reachable_binaries(layout, account)
        if not layout.has_cluster():
            await make_cluster(layout, account, binaries)
        write_config(layout, (current_account(), account), self._extra_settings)
        return account, binaries

    async def _supervise(self, account: Account, binaries: Installation) -> None:
        pause_s, logged_s = _BACKOFF_FIRST_S, 0.0
        while True:
            if self._process is not None:
                exit_code = await self._process.wait()  # until the server exits
                if self._ready_since is not None and time.monotonic() - self._ready_since > _STABLE_AFTER_S:
                    pause_s = _BACKOFF_FIRST_S
                self._process, self._ready_since = None, None
                _log.warning("embedded PostgreSQL exited", exit_code=exit_code, restart_s=pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _BACKOFF_MOST_S)
            try:
                await self._launch(account, binaries)
            except (EmbeddedPostgresError, OSError) as error:
                if self._last_error is None or time.monotonic() - logged_s >= _LOG_EVERY_S:
                    logged_s = time.monotonic()
                    _log.warning("embedded PostgreSQL restart failed", error=str(error), retry_s=pause_s)
                self._last_error = str(error)
            else:
                self._restarts += 1
                _log.info("embedded PostgreSQL restarted", restarts=self._restarts)

    async def _launch(self, account: Account, binaries: Installation) -> None:
        """Starts the server and waits until it answers; if it does not, no process is left."""
        layout = self._layout
        await clear_leftovers(layout)
        # No server runs here now, so these files are stale. Where process ids repeat soon (containers), PostgreSQL
        # would take any process with the old id for its own.
        for stale in (layout.cluster / "postmaster.pid", *layout.sockets.iterdir()):
            stale.unlink(missing_ok=True)
        argv = [str(binaries.postgres), "-D", str(layout.cluster)]
        argv += ["-c", f"config_file={layout.config / 'postgresql.conf'}"]
        begin = time.monotonic()
        with layout.startup_log.open("wb") as output:
            self._process = await start_server(account, argv, output)
        try:
            await self._await_ready(self._process)
        except EmbeddedPostgresError:
            await self._end_server()
            raise
        self._ready_since, self._last_error = time.monotonic(), None
        _log.info("embedded PostgreSQL ready", pid=self._process.pid, seconds=round(self._ready_since - begin, 3))

    async def _await_ready(self, process: asyncio.subprocess.Process) -> None:
        deadline = time.monotonic() + _READY_DEADLINE_S
        while True:
            if process.returncode is not None:
                raise EmbeddedPostgresError(
                    f"PostgreSQL exited at start (exit code {process.returncode}): {self._layout.startup_messages()}",
                )
            refusal = await _probe(self.dsn)
            if refusal is None:
                return
            if time.monotonic() > deadline:
                raise EmbeddedPostgresError(f"PostgreSQL was not ready within {_READY_DEADLINE_S:g} s: {refusal}")
            await asyncio.sleep(_PROBE_PAUSE_S)

    async def _end_server(self) -> None:
        self._ready_since = None
        if self._process is not None:
            await _end(self._process)
            self._process = None
        if self._lock is not None:
            # The log writer runs for a moment longer than its server.
            await clear_leftovers(self._layout)


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        for number, patience_s in _STOP_STEPS:
            if process.returncode is None:
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), patience_s)
                return
        process.kill()
        await process.wait()  # SIGKILL was sent: the kernel ends this wait
    except BaseException:
        # Cancelled while waiting: an immediate shutdown stops the server.
        if process.returncode is None:
            process.send_signal(signal.SIGQUIT)
        raise


async def _probe(dsn: str) -> str | None:
    """Runs a query; returns None, or the reason why the server has not answered yet.

    Raises:
        EmbeddedPostgresError: the server answered, and refuses the controller for good.
    """
    try:
        async with asyncio.timeout(_PROBE_DEADLINE_S):
            connection = await asyncpg.connect(dsn)
            try:
                await connection.fetchval("SELECT 1")
            finally:
                connection.terminate()
    except (OSError, asyncpg.CannotConnectNowError, asyncpg.PostgresConnectionError) as error:
        return f"{type(error).__name__}: {error}"
    except asyncpg.PostgresError as error:
        raise EmbeddedPostgresError(f"PostgreSQL refuses its own controller: {error}") from error
    return None
