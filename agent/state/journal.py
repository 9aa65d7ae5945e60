"""The agent's durable state in SQLite: its identity and history, and the records of its processes.

Every write is durable when the call returns (WAL, synchronous=FULL), and callers write before they act. Writes are
small and rare (a few in a process's life), so they run on the loop's thread: a command is answered after its record.

The journal must work on a full disk too. So space for many writes is reserved: as free pages of the file, and as a log
that is overwritten in place.
"""

import fcntl
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from agent.errors import DataFolderError
from agent.state.host_state import HostState
from agent.state.process_records import ProcessKey, ProcessRecord

LOCK_FILE: Final = "agent.lock"
ENDED_KEPT: Final = 2000
EPOCHS_KEPT: Final = 20_000
_JOURNAL_FILE: Final = "journal.sqlite"
_BUSY_TIMEOUT_S: Final = 5.0
_RESERVE_BYTES: Final = 512 * 2**10
_PAGE_BYTES: Final = 4096
# The log is overwritten from its start at this length, which it reaches when the reserve is first filled.
_LOG_PAGES: Final = _RESERVE_BYTES // _PAGE_BYTES
_CACHE_KIB: Final = 256  # of pages; frequent look-ups are in memory
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS facts (id INTEGER PRIMARY KEY CHECK (id = 1), body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS processes (
    instance TEXT NOT NULL, epoch INTEGER NOT NULL, rank INTEGER NOT NULL, seq INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (instance, epoch, rank)
);
CREATE TABLE IF NOT EXISTS epochs (instance TEXT PRIMARY KEY, epoch INTEGER NOT NULL, touched INTEGER NOT NULL);
"""
_INDEXES: Final = """
CREATE INDEX IF NOT EXISTS processes_by_seq ON processes (seq);
CREATE INDEX IF NOT EXISTS epochs_by_touched ON epochs (touched);
"""
K = TypeVar("K")
V = TypeVar("V")


def read_host_state(folder: Path) -> HostState | None:
    """Reads a journal without its lock; None if it is missing. Raises OSError, sqlite3.Error or ValidationError."""
    path = folder / _JOURNAL_FILE
    if not path.exists():
        return None
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_BUSY_TIMEOUT_S)
    try:
        return _host_state_in(db)
    finally:
        db.close()


class _Rows(Mapping[K, V]):
    """A table that is read on demand, so that old processes take no memory."""

    def __init__(self, find: Callable[[K], V | None], keys: Callable[[], list[K]]) -> None:
        self._find = find
        self._keys = keys

    def __getitem__(self, key: K) -> V:
        value = self._find(key)
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())


class Journal:
    """The agent's state. Live and unacknowledged processes are in memory; others are read on demand."""

    def __init__(self, folder: Path) -> None:
        """Opens and locks the journal, in a folder that is created if missing. Raises DataFolderError."""
        self._lock = _lock_folder(folder)
        try:
            self._db = _open_database(folder / _JOURNAL_FILE)
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            raise DataFolderError(
                f"{folder}: the journal cannot be opened ({error}); use another --data-dir"
            ) from error
        try:
            self._host_state = _host_state_in(self._db)
            self._read_all()
        except (sqlite3.Error, ValueError) as error:
            self.close()
            raise DataFolderError(
                f"{folder}: the journal cannot be read ({error}); if a newer agent version wrote it, run that version,"
                " else use another --data-dir"
            ) from error

    @property
    def host_state(self) -> HostState:
        return self._host_state

    @property
    def processes(self) -> Mapping[ProcessKey, ProcessRecord]:
        """Every known process, live or ended."""
        return _Rows(self._find, self._process_keys)

    @property
    def epochs(self) -> Mapping[str, int]:
        """The highest known epoch of each instance."""
        return _Rows(self._find_epoch, self._instances)

    def of(self, instance: str) -> tuple[ProcessRecord, ...]:
        """The processes of one instance; while any lives, without acknowledged ones."""
        here = tuple(self._open[key] for key in self._keys.get(instance, ()))
        if any(record.alive for record in here):
            return here
        return tuple(self._select("WHERE instance = ? ORDER BY seq", instance))

    def live(self) -> tuple[ProcessRecord, ...]:
        """Processes that may still hold devices."""
        return tuple(record for record in self._open.values() if record.alive)

    def unacknowledged(self) -> tuple[ProcessRecord, ...]:
        """Processes that hello reports: live, or ended and not acknowledged by the controller."""
        return tuple(self._open.values())

    def remember(self, **changes: object) -> None:
        """Changes fields of the host's state."""
        state = replace(self._host_state, **changes)
        if state != self._host_state:
            with self._transaction():
                self._write_host_state(state)
            self._host_state = state

    def record(self, record: ProcessRecord) -> ProcessRecord:
        """Writes a process's new state; returns it with the next sequence number."""
        state = replace(self._host_state, report_seq=self._host_state.report_seq + 1)
        record = replace(record, seq=state.report_seq)
        with self._transaction():
            self._write_host_state(state)
            self._write_process(record)
            self._raise_epoch(record.instance, record.epoch, state.report_seq)
        self._host_state = state
        if record.key not in self._open:
            _fill_reserve(self._db)
        self._hold(record)
        return record

    def amend(self, record: ProcessRecord) -> None:
        """Writes an unreported change (a port, a start time) under the same sequence number."""
        with self._transaction():
            self._write_process(record)
        self._hold(record)

    def acknowledge(self, seq: int) -> None:
        """The controller has acknowledged reports up to sequence number `seq`.

        The newest `ENDED_KEPT` ended processes are kept, so that a repeated command is recognised.
        """
        ended = [r for r in self._open.values() if not r.alive and r.seq <= seq]
        if not ended:
            return
        with self._transaction():
            for record in ended:
                self._write_process(replace(record, acked=True))
            self._forget_oldest(len(ended))
        for record in ended:
            self._release(record.key)

    def _forget_oldest(self, ended: int) -> None:
        """Deletes surplus rows; `ended`: the number of processes in memory that are acknowledged now."""
        (rows,) = self._db.execute("SELECT count(*) FROM processes").fetchone()
        surplus = rows - (len(self._open) - ended) - ENDED_KEPT
        if surplus > 0:
            acked = (record.key for record in self._select("ORDER BY seq") if record.acked)
            oldest = list(itertools.islice(acked, surplus))
            self._db.executemany("DELETE FROM processes WHERE (instance, epoch, rank) = (?, ?, ?)", oldest)
        (rows,) = self._db.execute("SELECT count(*) FROM epochs").fetchone()
        if rows > EPOCHS_KEPT:
            self._db.execute(
                "DELETE FROM epochs WHERE instance IN (SELECT instance FROM epochs ORDER BY touched LIMIT ?)",
                (rows - EPOCHS_KEPT,),
            )

    def _hold(self, record: ProcessRecord) -> None:
        """Keeps the record in memory until its end is acknowledged."""
        if record.acked and not record.alive:
            self._release(record.key)
            return
        self._open[record.key] = record
        self._keys.setdefault(record.instance, set()).add(record.key)

    def _release(self, key: ProcessKey) -> None:
        self._open.pop(key, None)
        if (keys := self._keys.get(key.instance)) is not None:
            keys.discard(key)
            if not keys:
                del self._keys[key.instance]

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _write_host_state(self, state: HostState) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (1, ?)", (msgspec.json.encode(state).decode(),))

    def _write_process(self, record: ProcessRecord) -> None:
        body = msgspec.json.encode(record).decode()
        self._db.execute("INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?)", (*record.key, record.seq, body))

    def _raise_epoch(self, instance: str, epoch: int, touched: int) -> None:
        self._db.execute(
            "INSERT INTO epochs VALUES (?, ?, ?) ON CONFLICT (instance) DO UPDATE"
            " SET epoch = max(epoch, excluded.epoch), touched = excluded.touched",
            (instance, epoch, touched),
        )

    def _read_all(self) -> None:
        """Reads live and unacknowledged processes. Raises ValueError if this version cannot decode any record."""
        self._open: dict[ProcessKey, ProcessRecord] = {}
        self._keys: dict[str, set[ProcessKey]] = {}
        for record in self._select("ORDER BY seq"):
            self._hold(record)

    def _select(self, which: str, *values: Any) -> Iterator[ProcessRecord]:
        for (body,) in self._db.execute(f"SELECT body FROM processes {which}", values):  # noqa: S608 - ours
            yield msgspec.json.decode(body, type=ProcessRecord)

    def _find(self, key: ProcessKey) -> ProcessRecord | None:
        if (record := self._open.get(key)) is not None:
            return record
        return next(self._select("WHERE (instance, epoch, rank) = (?, ?, ?)", *key), None)

    def _process_keys(self) -> list[ProcessKey]:
        return [
            ProcessKey(*row) for row in self._db.execute("SELECT instance, epoch, rank FROM processes ORDER BY seq")
        ]

    def _find_epoch(self, instance: str) -> int | None:
        row = self._db.execute("SELECT epoch FROM epochs WHERE instance = ?", (instance,)).fetchone()
        return None if row is None else int(row[0])

    def _instances(self) -> list[str]:
        return [instance for (instance,) in self._db.execute("SELECT instance FROM epochs ORDER BY touched")]


def _host_state_in(db: sqlite3.Connection) -> HostState:
    row = db.execute("SELECT body FROM facts").fetchone()
    return HostState() if row is None else msgspec.json.decode(row[0], type=HostState)


def _lock_folder(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataFolderError(f"{folder}: cannot be used ({error.strerror}); choose a writable --data-dir") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise DataFolderError(f"{folder}: another agent uses it; stop that agent or use another --data-dir") from error
    return lock


def _open_database(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    db = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        db.executescript(_SCHEMA)
        _fill_reserve(db)
        with suppress(sqlite3.OperationalError):  # a full disk: look-ups are slower without them
            db.executescript(_INDEXES)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _fill_reserve(db: sqlite3.Connection) -> None:
    """Refills the reserve if half of it is used and the disk has space."""
    (free_pages,) = db.execute("PRAGMA freelist_count").fetchone()
    if free_pages * _PAGE_BYTES >= _RESERVE_BYTES / 2:
        return
    with suppress(sqlite3.OperationalError):
        db.execute("DROP TABLE IF EXISTS reserve")
        db.execute(f"CREATE TABLE reserve AS SELECT zeroblob({_RESERVE_BYTES})")
        db.execute("DROP TABLE reserve")
