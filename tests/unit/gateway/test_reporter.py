"""What a gateway tells the leader, and when: demand, wakes, their ends, and everything again after an outage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from controller.live.demand import GatewayLoad, ReportAnswer
from controller.live.endpoints import Trouble
from gateway.errors import GatewayError
from gateway.queueing.demand import Demand
from gateway.queueing.queues import Queues
from gateway.reporting.reporter import Reporter
from gateway.reporting.revision_outcomes import RevisionOutcomes
from gateway.routing.routing_table import RoutingTable
from support.builders.models import model

UID = "uid-m"


@dataclass
class Reports:
    """Notes what is told. `forgot`: the database knew nothing of this gateway."""

    told: list[Any] = field(default_factory=list)
    fails_late: bool = False  # from the withdrawals on
    forgot: bool = False

    async def report(self, loads: Mapping[str, GatewayLoad], _outcomes: object) -> ReportAnswer:
        self.told.append({uid: (load.in_flight, load.waiting) for uid, load in loads.items()})
        return ReportAnswer(0, 1, self.forgot)

    async def wake(self, uid: str, request_id: str) -> None:
        self.told.append(("wake", uid, request_id))

    async def withdraw(self, uid: str) -> None:
        if self.fails_late:
            raise ConnectionRefusedError("no database")
        self.told.append(("withdraw", uid))


@dataclass(eq=False)
class Request:
    request_id: str
    arrived: float = 0.0
    key: str = "k"
    role: str = "inference"

    def go(self) -> None:
        pass

    def fail(self, error: GatewayError) -> None:
        pass


class Site:
    def __init__(self) -> None:
        self.now = 100.0
        self.table = RoutingTable(lambda: self.now)
        self.demand = Demand(self.now)
        self.queues = Queues(self.table, self.demand, lambda: self.now)
        self.reports = Reports()
        reports: Any = self.reports
        self.reporter = Reporter(reports, self.demand, self.queues, lambda: self.now, RevisionOutcomes(), self.table)
        self.route()

    def route(self, **fields: Any) -> None:
        self.table.update({"m": model("m", may_sleep=True, wanted=0, **fields)}, [])
        self.queues.routes_changed()

    def join(self, request_id: str) -> Request:
        request = Request(request_id, self.now)
        self.queues.join(request, "m", [])
        return request

    async def turn(self, after_s: float = 1.0) -> list[Any]:
        """What the next report tells."""
        self.now += after_s
        self.reports.told.clear()
        await self.reporter._report()
        return list(self.reports.told)


@pytest.fixture
def site() -> Site:
    return Site()


async def test_a_wake_is_asked_for_once_and_again_as_long_as_something_waits(site: Site) -> None:
    first = site.join("first")
    assert await site.turn() == [{UID: (0, 1)}, ("wake", UID, "first")]
    site.join("second")
    assert ("wake", UID, "first") not in await site.turn()
    turns = [await site.turn() for _ in range(60)]
    assert sum(("wake", UID, "first") in told for told in turns) == 3, "each 20 s, since it ends by itself after 60"
    site.queues.leave(first, "m", refused=False)
    assert ("withdraw", UID) not in await site.turn()


async def test_a_wake_is_withdrawn_once_its_clients_have_left_and_asked_for_anew_by_the_next(site: Site) -> None:
    first = site.join("first")
    await site.turn()
    site.queues.leave(first, "m", refused=False)
    assert await site.turn() == [{UID: (0, 0)}, ("withdraw", UID)]
    site.join("second")
    assert ("wake", UID, "second") in await site.turn()


async def test_g31_a_refused_request_asks_too(site: Site) -> None:
    site.route(trouble=Trouble("no_capacity", ""))
    site.join("refused")
    assert await site.turn() == [{}, ("wake", UID, "refused")]
    assert await site.turn() == [{}]
    site.now += 20
    site.join("again")
    assert ("wake", UID, "again") in await site.turn()


async def test_a_withdrawal_that_failed_is_told_later_unless_the_model_is_wanted_again(site: Site) -> None:
    for wanted_again in (False, True):
        first = site.join("first")
        await site.turn()
        site.queues.leave(first, "m", refused=False)
        site.reports.fails_late = True
        with pytest.raises(ConnectionRefusedError):
            await site.turn()
        site.reports.fails_late = False
        if wanted_again:
            first = site.join("again")
        assert (("withdraw", UID) in await site.turn()) is not wanted_again
        assert ("withdraw", UID) not in await site.turn()


async def test_what_the_database_does_not_know_is_told_again(site: Site) -> None:
    site.join("first")
    await site.turn()
    site.reports.forgot = True
    await site.turn()
    assert (await site.turn())[0] == {UID: (0, 1)}, "though nothing has changed"
