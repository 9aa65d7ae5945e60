"""What gateways tell one another of requests that were in flight when engines ended."""

from controller.domain.crashed_requests import REFUSED_S, UNDECIDED_S, RequestAtEnd, Suspicion, suspicions
from controller.store.core.notify import ENDS
from controller.store.deployments.crashed_requests import read_requests_at_ends, write_requests_at_ends

__all__ = [
    "ENDS",
    "REFUSED_S",
    "UNDECIDED_S",
    "RequestAtEnd",
    "Suspicion",
    "read_requests_at_ends",
    "suspicions",
    "write_requests_at_ends",
]
