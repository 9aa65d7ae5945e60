"""A gateway's knowledge of requests that crash engines, where every end counts as a crash."""

from controller.live.crashed_requests import Suspicion
from controller.live.endpoints import Endpoint
from gateway.crash_watch import CrashWatch


class Crashes(CrashWatch):
    """Takes every end that it is shown for a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ends: list[bytes] = []
        self.crashes = 1

    def note(self, _: Endpoint, request: bytes) -> None:
        self.at_ends.append(request)

    @property
    def suspects(self) -> bool:
        return bool(self.at_ends)

    def suspicion(self, request: bytes) -> Suspicion | None:
        return Suspicion(self.crashes, 9.5) if request in self.at_ends else None
