"""A bound on open streams, per key and in all, so that one key cannot exhaust the total."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from controller.api.errors import ApiError, unavailable


class OpenStreams:
    """Counts open streams.

    Args:
        what: plural noun for the refusal: "live sockets".
        code: of the refusal, as `too_many_live`.
        of_key: maximum of one key.
        total: maximum of all keys.
    """

    def __init__(self, what: str, code: str, *, of_key: int, total: int) -> None:
        self._what, self._code = what, code
        self.of_key, self.total = of_key, total
        self._open: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._open.total()

    @contextmanager
    def admitted(self, key_id: str) -> Iterator[None]:
        """Counts one stream of this key until the context ends.

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
