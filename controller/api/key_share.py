"""A bound on what is open at once, of one key and in all, so that one key cannot take the places of the others."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from controller.api.errors import ApiError, unavailable


class KeyShare:
    """Counts what is open.

    Args:
        what: in the plural, as the refusal says it: "live sockets".
        code: of the refusal, as `too_many_live`.
        of_key: at most so many of one key.
        total: at most so many in all.
    """

    def __init__(self, what: str, code: str, *, of_key: int, total: int) -> None:
        self._what, self._code = what, code
        self.of_key, self.total = of_key, total
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many are open."""
        return self._open.total()

    @contextmanager
    def admitted(self, key_id: str) -> Iterator[None]:
        """Counts one of this key for as long as the context lasts.

        Raises:
            ApiError: 429, the key has as many as it may; 503, all keys together have.
        """
        if self._open[key_id] >= self.of_key:
            said = f"{self.of_key} {self._what} of this key are open, the most allowed; close some, or use another key"
            raise ApiError(429, self._code, said)
        if len(self) >= self.total:
            raise unavailable(self._code, f"{self.total} {self._what} are open here, the most allowed; try again later")
        self._open[key_id] += 1
        try:
            yield
        finally:
            self._open -= Counter((key_id,))  # drops what is at zero
