"""A bound on streams and long requests that are open, for each key and in all, so that no key exhausts the total.

It counts live sockets, logs that are read and plans of viewers. `controller/domain/access/key_shares.py` divides what
a key may use at the gateways.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from controller.api.errors import ApiError, unavailable


class OpenStreams:
    """Counts what is open.

    Args:
        what: plural noun for the refusal's message: "live sockets".
        code: the refusal's code: `too_many_live`.
        of_key: the most that one key may have open.
        total: the most that all keys together may have open.
    """

    def __init__(self, what: str, code: str, *, of_key: int, total: int) -> None:
        self._what, self._code = what, code
        self.of_key, self.total = of_key, total
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open.total()

    @contextmanager
    def admitted(self, key_id: str) -> Iterator[None]:
        """Counts one more of this key until the context ends.

        Raises:
            ApiError: 429, the key has its maximum; 503, all keys together have theirs.
        """
        if self._open[key_id] >= self.of_key:
            message = (
                f"{self.of_key} {self._what} of this key are open, the most allowed; close some, or use another key"
            )
            raise ApiError(429, self._code, message)
        if len(self) >= self.total:
            raise unavailable(self._code, f"{self.total} {self._what} are open here, the most allowed; try again later")
        self._open[key_id] += 1
        try:
            yield
        finally:
            self._open -= Counter((key_id,))  # drops what is at zero
