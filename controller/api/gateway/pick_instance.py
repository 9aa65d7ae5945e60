"""Picks the instance for a request, from a table in memory: fewest requests in flight first. No I/O."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from controller.api.gateway.endpoints import Endpoint

Names = frozenset[str]
_NEVER: Final = 0


class RoutingTable:
    """Running endpoints by model, with the requests in flight to each. The counts outlive an update."""

    def __init__(self) -> None:
        self._names: Names = frozenset()
        self._by_model: dict[str, list[Endpoint]] = {}
        self._in_flight: dict[str, int] = {}
        self._last_picked: dict[str, int] = {}
        self._picks = _NEVER

    def update(self, names: Names, endpoints: Iterable[Endpoint]) -> None:
        """Replaces the endpoints.

        Args:
            names: of all live deployments.
            endpoints: of their running instances.
        """
        by_model: dict[str, list[Endpoint]] = {}
        present: set[str] = set()
        for endpoint in endpoints:
            by_model.setdefault(endpoint.model, []).append(endpoint)
            present.add(endpoint.instance)
        self._names, self._by_model = names, by_model
        self._last_picked = {i: pick for i, pick in self._last_picked.items() if i in present}

    def knows(self, model: str) -> bool:
        """Whether a live deployment has that name."""
        return model in self._names

    def running_models(self) -> list[str]:
        """The models with at least one running instance."""
        return sorted(self._by_model)

    def pick(self, model: str, tried: Collection[str] = ()) -> Endpoint | None:
        """The endpoint with the fewest requests in flight; among equals the least recently picked.

        Args:
            model: the deployment's name.
            tried: instances that this request has tried already.
        """
        candidates = [e for e in self._by_model.get(model, ()) if e.instance not in tried]
        if not candidates:
            return None
        chosen = min(
            candidates, key=lambda e: (self._in_flight.get(e.instance, 0), self._last_picked.get(e.instance, _NEVER))
        )
        self._picks += 1
        self._last_picked[chosen.instance] = self._picks
        return chosen

    @contextmanager
    def counted(self, endpoint: Endpoint) -> Iterator[None]:
        """Counts a request in flight for as long as the context lasts."""
        instance = endpoint.instance
        self._in_flight[instance] = self._in_flight.get(instance, 0) + 1
        try:
            yield
        finally:
            left = self._in_flight[instance] - 1
            if left:
                self._in_flight[instance] = left
            else:
                del self._in_flight[instance]
