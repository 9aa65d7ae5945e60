"""Requests in flight to an engine, without a proxy."""

from collections.abc import Iterator
from contextlib import contextmanager

from agent.engine_proxy.in_flight import InFlightRequests


@contextmanager
def a_request(in_flight: InFlightRequests, instance: str = "i") -> Iterator[None]:
    """One request while the context lasts."""
    in_flight.started(instance)
    try:
        yield
    finally:
        in_flight.ended(instance)
