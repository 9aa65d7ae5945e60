"""A worker that was silent and is heard again on the same connection: the leader is woken, whatever its limit is."""

from typing import Any

import pytest

from controller.hub.heartbeats import Liveness
from controller.hub.hub import Hub
from controller.store.telemetry.partitions import SampleRetention


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def liveness_of(unreachable_after_s: float, clock: Any) -> Liveness:
    hub = Hub(
        None,  # type: ignore[arg-type]  # nothing is written
        clock,
        instance_id="c",
        secrets=None,  # type: ignore[arg-type]  # as above
        sample_s=10.0,
        keep=SampleRetention(1.0, 1.0),
        unreachable_after_s=unreachable_after_s,
    )
    return hub._liveness


@pytest.mark.parametrize(
    ("unreachable_after_s", "silent_s", "woken"),
    [(7.0, 7.0, True), (7.0, 5.0, False), (15.0, 15.0, True), (15.0, 9.0, False), (60.0, 60.0, True)],
)
async def test_the_leader_is_woken_by_what_may_have_been_unreachable(
    unreachable_after_s: float, silent_s: float, woken: bool
) -> None:
    clock, session = Clock(), object()
    liveness: Any = liveness_of(unreachable_after_s, clock)
    liveness.opened(session)
    clock.now += silent_s
    liveness.heard(session)
    assert liveness._unwritten[session].notify is woken
