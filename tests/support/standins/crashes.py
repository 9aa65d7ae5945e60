"""A gateway's knowledge of requests that crash engines, where every end counts as a crash."""

import asyncio

from controller.live.crashed_requests import Suspicion
from controller.live.endpoints import Endpoint
from gateway.requests.crash_watch import WAIT_S, CrashWatch


class Crashes(CrashWatch):
    """Takes every end that it is shown for a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.at_ends: list[bytes] = []
        self.errors: list[bytes] = []
        self.crashes = 1
        self.decision: asyncio.Event | None = None  # until which all is undecided

    def note(self, _: Endpoint, request: bytes) -> None:
        self.at_ends.append(request)
        self.suspicions[request] = Suspicion(1, 9.5)

    def note_error(self, _: Endpoint, request: bytes) -> None:
        self.errors.append(request)

    def end_engines(self) -> None:
        """All engines end now."""
        self.at_ends += self.errors
        self.suspicions |= dict.fromkeys(self.errors, Suspicion(1, 9.5))
        self.errors.clear()

    def suspicion(self, request: bytes) -> Suspicion | None:
        return Suspicion(self.crashes, 9.5) if request in self.at_ends else None

    async def decided(self, request: bytes, limit_s: float = WAIT_S) -> None:
        if self.decision is None:
            await super().decided(request, limit_s)
        else:
            await self.decision.wait()
