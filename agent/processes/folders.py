"""The instances' folders in the data folder: the working folder, and the logs by epoch and rank.

    instances/<instance>/work/                 the engine's working folder
    instances/<instance>/logs/<epoch>-<rank>.log, .log.1, .index, .secrets, .end

Logs are files, not pipes, so that engines can write while no agent runs. A rotation copies the tail of a log and then
truncates it: the writer keeps its descriptor, opened for appending. Lines written during the copy may be lost.
"""

import json
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final
from weakref import WeakValueDictionary

from agent.logs.log_index import LogIndex
from agent.logs.redaction import Redactor
from agent.processes.account import Account, own_account
from agent.state.process_records import ProcessKey

LOG_BYTES: Final = 16 * 2**20
EPOCHS_KEPT: Final = 3
INSTANCES_KEPT: Final = 64
_CHUNK: Final = 2**20
_SECRETS: Final = ".secrets"
_END: Final = ".end"
_PASS: Final = 0o011  # of a folder: other accounts may enter, but not list it
_TAIL_BYTES: Final = 32_768


@dataclass(frozen=True, slots=True)
class LogFile:
    """The log of one process."""

    epoch: int
    rank: int
    path: Path


class InstanceFolders:
    """Paths of instances; rotates logs and removes old ones."""

    def __init__(self, data_dir: Path, *, log_bytes: int = LOG_BYTES) -> None:
        self.data_dir = data_dir
        self._root = data_dir / "instances"
        self._log_bytes = log_bytes
        self._indexes: WeakValueDictionary[Path, LogIndex] = WeakValueDictionary()
        self._indexes_lock = Lock()

    def work(self, instance: str, account: Account | None = None) -> Path:
        """The working folder, created if it is missing; `account` None: the agent's own. Raises OSError.

        Blocks for a walk if the owner changes.
        """
        path = self._root / instance / "work"
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if account is not None and account.uid != os.geteuid():  # it can enter its own folder and cannot list others
            self.let_pass()
            path.parent.chmod((path.parent.stat().st_mode & 0o700) | _PASS)
        if account is not None or path.lstat().st_uid != os.geteuid():
            (account or own_account()).take(path)
        return path

    def let_pass(self) -> None:
        """Lets other accounts reach their own folders, and list nothing. Raises OSError."""
        self._root.mkdir(exist_ok=True, mode=0o700)
        for passed in (self.data_dir, self._root):
            passed.chmod((passed.stat().st_mode & 0o700) | _PASS)

    def home(self, account: Account) -> Path:
        """The common home of an account's engines, such as for compiled kernels; created if it is missing."""
        path = self.data_dir / "home"
        path.mkdir(exist_ok=True, mode=0o700)
        account.take(path)
        return path

    def owners(self) -> dict[str, int]:
        """The owner's uid of each instance's working folder."""
        owners = {}
        for path in self._root.glob("*/work"):
            with suppress(OSError):
                owners[path.parent.name] = path.lstat().st_uid
        return owners

    def close(self, instance: str) -> None:
        """Takes the working folder of an ended instance from its account. Raises OSError."""
        os.lchown(self._root / instance / "work", os.geteuid(), os.getegid())

    def log(self, key: ProcessKey) -> Path:
        """The path of a log, in a folder that is created if it is missing."""
        folder = self._root / key.instance / "logs"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder / f"{key.epoch}-{key.rank}.log"

    def index(self, key: ProcessKey) -> LogIndex:
        """The index of a log, one shared object while in use. Blocks."""
        path = self.log(key)
        with self._indexes_lock:
            index = self._indexes.get(path)
            if index is None:
                index = self._indexes[path] = LogIndex(path)
            return index

    def end(self, key: ProcessKey) -> Path:
        """The path of the record of a process's end."""
        return self.log(key).with_suffix(_END)

    def prune_ends(self, live: Collection[ProcessKey]) -> None:
        """Removes the records of other processes, which ends their parents."""
        for path in self._root.glob(f"*/logs/*{_END}"):
            epoch, _, rank = path.stem.partition("-")
            key = (path.parent.parent.name, int(epoch), int(rank)) if epoch.isdigit() and rank.isdigit() else None
            if key not in live:
                path.unlink(missing_ok=True)

    def keep_secrets(self, key: ProcessKey, values: Collection[str]) -> None:
        """Keeps values to redact next to the log. Raises OSError."""
        path = self.log(key).with_suffix(_SECRETS)
        path.unlink(missing_ok=True)
        if values:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(list(values), file)

    def redactor(self, key: ProcessKey) -> Redactor:
        """Raises OSError or ValueError if the values cannot be read."""
        try:
            text = self.log(key).with_suffix(_SECRETS).read_text(encoding="utf-8")
        except FileNotFoundError:
            return Redactor()
        return Redactor(json.loads(text))

    def logs(self, instance: str) -> tuple[LogFile, ...]:
        """The logs of an instance, newest epoch first, ranks in order."""
        logs = []
        for path in (self._root / instance / "logs").glob("*.log"):
            epoch, _, rank = path.stem.partition("-")
            if epoch.isdigit() and rank.isdigit():
                logs.append(LogFile(int(epoch), int(rank), path))
        return tuple(sorted(logs, key=lambda log: (-log.epoch, log.rank)))

    def log_state(self, key: ProcessKey) -> tuple[int, int]:
        """Size and time of the log, which change with each output."""
        try:
            status = self.log(key).stat()
        except FileNotFoundError:
            return (0, 0)
        return (status.st_size, status.st_mtime_ns)

    def log_tail(self, key: ProcessKey, redactor: Redactor) -> str:
        """The redacted end of the log, some 300 lines. Blocks."""
        with self.log(key).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            text = file.read(_TAIL_BYTES)
        return redactor.redact_cut(text).decode("utf-8", errors="replace")

    def rotate_log(self, key: ProcessKey) -> bool:
        """Rotates a log that is too large; returns whether it did. Blocks for a copy."""
        path, index = self.log(key), self.index(key)
        if not path.exists() or path.stat().st_size <= self._log_bytes:
            return False
        with index.lock:
            index.poll()
            part = path.with_suffix(".part")
            with path.open("rb") as source, part.open("wb") as target:
                size = source.seek(-self._log_bytes, os.SEEK_END) + self._log_bytes
                left = self._log_bytes
                while left > 0 and (chunk := source.read(min(_CHUNK, left))):
                    target.write(chunk)
                    left -= len(chunk)
            os.truncate(path, 0)
            part.replace(path.with_suffix(".log.1"))
            index.rotated(self._log_bytes, size)
        return True

    def prune(self, live: Collection[str]) -> None:
        """Removes logs of old epochs, and folders of instances that ended long ago. Blocks."""
        try:
            instances = [path for path in self._root.iterdir() if path.is_dir()]
        except FileNotFoundError:
            return
        for path in instances:
            self._prune_logs(path.name)
        ended = sorted((path for path in instances if path.name not in live), key=_last_change, reverse=True)
        for path in ended[INSTANCES_KEPT:]:
            shutil.rmtree(path, ignore_errors=True)

    def _prune_logs(self, instance: str) -> None:
        logs = self.logs(instance)
        epochs = sorted({log.epoch for log in logs}, reverse=True)
        for log in logs:
            if log.epoch not in epochs[:EPOCHS_KEPT]:
                log.path.unlink(missing_ok=True)
                log.path.with_suffix(".log.1").unlink(missing_ok=True)
                log.path.with_suffix(".index").unlink(missing_ok=True)
                log.path.with_suffix(_SECRETS).unlink(missing_ok=True)


def _last_change(path: Path) -> int:
    return max(path.stat().st_mtime_ns, *(log.stat().st_mtime_ns for log in path.glob("logs/*.log")), 0)
