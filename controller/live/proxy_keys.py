"""A gateway's keys for the secrets of agents' proxies: in a file, which is read again when it changes.

They are derived from the secrets' key and open nothing else. A controller writes them next to its socket; other hosts
get a copy.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from controller.store.access.secret_keys import SecretKeys, parse_keys

__all__ = ["NO_PROXY_KEYS", "ProxyKeys", "SecretKeys"]

log = structlog.get_logger(__name__)

_MOST_BYTES: Final = 65_536
_Stamp = tuple[int, int, int] | None


class ProxyKeys:
    """The keys of one gateway process. Raises ValueError for a malformed key, OSError if the file cannot be read.

    `file`: may be created later. `named`: a setting names it; if not, this account may lack the right to read it.
    """

    def __init__(self, file: Path | None, *, named: bool = True) -> None:
        self._file = file
        self._named = named
        self._known: Sequence[bytes] = ()
        self._stamp: _Stamp = None
        self._failure = ""  # the last read's error
        self.keys = SecretKeys(self._load)  # open the secrets

    async def refresh(self) -> None:
        """Reads the file again if it has changed. If it cannot be read, the known keys stay in use."""
        if self._file is None:
            return
        try:
            if await asyncio.to_thread(self._stamp_now) != self._stamp:
                await asyncio.to_thread(self.keys.reload)
            self._failure = ""
        except (OSError, ValueError) as error:
            self._failed(error)

    def _load(self) -> Sequence[bytes]:
        try:
            stamp = self._stamp_now()
            if stamp is not None and self._file is not None:
                with self._file.open(encoding="ascii") as opened:
                    self._known = parse_keys(opened.read(_MOST_BYTES))
            self._stamp = stamp  # after the read: a file that could not be read is tried again, as its mode may change
        except PermissionError as error:
            if self._named:
                raise
            self._failed(error)
        return self._known

    def _failed(self, error: Exception) -> None:
        if (failure := str(error)) != self._failure:
            self._failure = failure
            log.warning("the keys of agents' proxies cannot be read", file=str(self._file), error=failure)

    def _stamp_now(self) -> _Stamp:
        """Differs where the content differs; None: there is no file."""
        try:
            stat = None if self._file is None else self._file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if stat is None else (stat.st_ino, stat.st_mtime_ns, stat.st_size)


NO_PROXY_KEYS: Final = ProxyKeys(None)
