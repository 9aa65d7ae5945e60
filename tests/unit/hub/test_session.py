"""How a connection compares its agent's clock with ours."""

from datetime import UTC, datetime

import pytest
from aiohttp import web

from controller.hub.session import Session

DAY_S = 86_400.0
EVERY_S = 10.0


def connection() -> Session:
    return Session(
        web.WebSocketResponse(),
        None,
        None,  # type: ignore[arg-type]  # nothing is read
        worker_id="w",
        name="gpu-1",
        number=1,
        since=datetime.now(UTC),
        boot_id="b",
        gpus=None,
    )


def test_the_least_delayed_message_gives_the_offset() -> None:
    session = connection()
    for received_s, sent_s in ((1_000.5, 0.0), (1_010.1, 10.0), (1_023.0, 20.0)):
        session.compare_clocks(received_s, sent_s)
    session.compare_clocks(1_030.0, None)
    assert session.offset_s == pytest.approx(1_000.1, abs=0.01)


@pytest.mark.parametrize("drift", [-1e-4, 0.0, 1e-4])
def test_clocks_that_drift_apart_for_weeks_still_date_samples_right(drift: float) -> None:
    """One message in a hundred arrives at once, the others late; the offset is still right."""
    session = connection()
    for n in range(int(14 * DAY_S / EVERY_S)):
        now_s = n * EVERY_S
        session.compare_clocks(now_s + (0.0 if n % 100 == 0 else 3.0), now_s * (1 + drift))
        assert session.offset_s is not None
        assert abs(now_s - (now_s * (1 + drift) + session.offset_s)) < 0.5
