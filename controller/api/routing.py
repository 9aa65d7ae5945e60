"""Which instance serves a request: a table in memory, least outstanding requests first. Pure but for its counters."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from controller.api.endpoints import Endpoint

Names = frozenset[str]
_NEVER: Final = 0


class RoutingTable:
    """Endpoints by model, with what each has to do at present. Kept through refreshes by instance."""

    def __init__(self) -> None:
        self._names: Names = frozenset()
        self._by_model: dict[str, list[Endpoint]] = {}
        self._outstanding: dict[str, int] = {}
        self._last_turn: dict[str, int] = {}
        self._turn = _NEVER

    def update(self, names: Names, endpoints: Iterable[Endpoint]) -> None:
        """Takes over what serves now; requests under way go on being counted."""
        by_model: dict[str, list[Endpoint]] = {}
        present: set[str] = set()
        for endpoint in endpoints:
            by_model.setdefault(endpoint.model, []).append(endpoint)
            present.add(endpoint.instance)
        self._names, self._by_model = names, by_model
        self._last_turn = {i: turn for i, turn in self._last_turn.items() if i in present}

    def knows(self, model: str) -> bool:
        """Whether a live deployment has that name."""
        return model in self._names

    def served(self) -> list[str]:
        """The models that at least one instance serves."""
        return sorted(self._by_model)

    def pick(self, model: str, tried: Collection[str] = ()) -> Endpoint | None:
        """The endpoint with the fewest requests under way, of equals the one whose turn was longest ago.

        Args:
            model: the deployment's name.
            tried: instances that this request has tried already.
        """
        free = [e for e in self._by_model.get(model, ()) if e.instance not in tried]
        if not free:
            return None
        chosen = min(
            free, key=lambda e: (self._outstanding.get(e.instance, 0), self._last_turn.get(e.instance, _NEVER))
        )
        self._turn += 1
        self._last_turn[chosen.instance] = self._turn
        return chosen

    @contextmanager
    def serving(self, endpoint: Endpoint) -> Iterator[None]:
        """Counts a request for as long as the context lasts."""
        instance = endpoint.instance
        self._outstanding[instance] = self._outstanding.get(instance, 0) + 1
        try:
            yield
        finally:
            left = self._outstanding[instance] - 1
            if left:
                self._outstanding[instance] = left
            else:
                del self._outstanding[instance]
