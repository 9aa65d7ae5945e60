"""Usage by key, model, endpoint and minute, handed to the store in numbered batches. Pure."""

from collections.abc import Sequence
from typing import Final

from controller.live.key_use import Counts, UsageRow

MOST_ROWS: Final = 50_000  # while the database is away; then minutes become hours
MOST_IN_BATCH: Final = 5_000
_HOUR_MIN: Final = 60
Name = tuple[int, str, str, str]


class Batches:
    """What was used since the last batch that the store has taken."""

    def __init__(self) -> None:
        self._rows: dict[Name, Counts] = {}
        self._number = 0
        self._sent: list[UsageRow] = []  # of the batch that is under way, unchanged until the store has it

    def add(self, minute: int, key: str, model: str, endpoint: str, counts: Counts) -> None:
        """Counts one request. `minute`: whole minutes since 1970, UTC."""
        name = (minute, key, model, endpoint)
        if name not in self._rows and len(self._rows) >= MOST_ROWS:
            name = (minute - minute % _HOUR_MIN, key, model, endpoint)
        found = self._rows.get(name)
        if found is None:
            self._rows[name] = counts
        else:
            found.add(counts)

    def next(self) -> tuple[int, Sequence[UsageRow]] | None:
        """The number and rows of the batch to hand over: the last one again until it is `taken`."""
        if not self._sent:
            if not self._rows:
                return None
            self._number += 1
            names = list(self._rows)[:MOST_IN_BATCH]
            self._sent = [UsageRow(*name, self._rows.pop(name)) for name in names]
        return self._number, self._sent

    def taken(self) -> None:
        """The store has the last batch."""
        self._sent = []
