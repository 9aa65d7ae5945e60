"""The keys that open the secrets of agents' proxies, as a gateway has them: in a file, which it reads again.

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
    """The keys of one gateway process.

    Args:
        file: where they are; it may come later. None: there is none.
        named: whether a setting names the file. If not, this account need not be allowed to read it.

    Raises:
        ValueError: they are malformed.
        OSError: they cannot be read.
    """

    def __init__(self, file: Path | None, *, named: bool = True) -> None:
        self._file = file
        self._named = named
        self._known: Sequence[bytes] = ()
        self._stamp: _Stamp = None
        self._failure = ""  # of the newest look
        self.keys = SecretKeys(self._load)  # open the secrets

    async def refresh(self) -> None:
        """Reads them again where the file has changed. Where it cannot be read, the known ones stay in use."""
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
            self._stamp = stamp  # of what was read: what could not be is read again, since its mode may change alone
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
        """Differs where the content differs; None: the file is not there."""
        try:
            found = None if self._file is None else self._file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return None if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


NO_PROXY_KEYS: Final = ProxyKeys(None)
