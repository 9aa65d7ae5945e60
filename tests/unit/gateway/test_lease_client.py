"""What a gateway lets wait while the store gives it no places."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import asyncpg
import pytest
from structlog.testing import capture_logs

from controller.live.change_fanout import ChangeFanout
from controller.live.demand import DemandReports, PlacesAsk
from gateway.queueing.lease_client import LeaseClient
from gateway.queueing.queue_leases import QueueLeases

UID, LENGTH, LIMIT_S = "uid-m", 4, 5.0


class Away:
    """The store, which does not answer."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def lease_places(self, asks: Sequence[PlacesAsk], in_touch_s: float) -> Any:
        assert asks, in_touch_s
        raise self._error


AWAY = ConnectionRefusedError("refused")


@pytest.mark.parametrize(
    ("error", "others_are_in_touch", "placed"),
    [(AWAY, True, []), (AWAY, False, [0, 1]), (asyncpg.DiskFullError("full"), True, [0, 1])],
)
async def test_g24_its_part_only_where_the_others_cannot_ask_either(
    *, error: Exception, others_are_in_touch: bool, placed: list[int]
) -> None:
    loop = asyncio.get_running_loop()
    refused: list[int] = []
    asked: list[float] = []

    async def ask_controller(limit_s: float) -> bool:
        asked.append(limit_s)
        return others_are_in_touch

    def refuse(uid: str, request: int) -> None:
        refused.append(request)
        places.leave(uid, request)

    def lacks() -> None:
        keeper.poke()

    places: QueueLeases[int] = QueueLeases(loop.time, lacks)
    places.gateways = 2
    reports = cast("DemandReports", Away(error))
    keeper = LeaseClient(reports, places, lambda: 0.0, refuse, ask_controller)
    began = loop.time()
    with capture_logs() as logs:
        keeper.start(ChangeFanout())
        for request in range(3):
            assert places.join(UID, request, LENGTH)
        while not refused:
            assert loop.time() - began < LIMIT_S
            await asyncio.sleep(0.01)
    assert refused == [one for one in range(3) if one not in placed]
    assert places.waiting(UID) == len(placed)
    assert not places.join(UID, 3, LENGTH)
    assert all(one < 0.5 for one in asked), "not before what it may have kept is too old"
    assert logs[0]["lets_wait"] == ("its part" if placed else "none new")
    await keeper.stop()
