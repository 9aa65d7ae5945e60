"""Gateways' shared records of requests that were in flight when engines ended."""

from controller.domain.crashed_requests import (
    ANSWERED_S,
    REFUSED_S,
    UNDECIDED_S,
    RequestAtEnd,
    Suspicion,
    answered_at_ends,
    suspicions,
)
from controller.store.core.events import ENDS
from controller.store.deployments.crashed_requests import read_ends, read_requests_at_ends, write_requests_at_ends

__all__ = [
    "ANSWERED_S",
    "ENDS",
    "REFUSED_S",
    "UNDECIDED_S",
    "RequestAtEnd",
    "Suspicion",
    "answered_at_ends",
    "read_ends",
    "read_requests_at_ends",
    "suspicions",
    "write_requests_at_ends",
]
