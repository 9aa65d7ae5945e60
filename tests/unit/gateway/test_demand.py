"""In flight and waiting as a mean over time: what came and went between two reports counts."""

from controller.live.demand import GatewayLoad as Load
from gateway.queueing.demand import Demand


def change(demand: Demand, uid: str, now: float, *, in_flight: int = 0, waiting: int = 0, arrived: int = 0) -> None:
    for _ in range(arrived):
        demand.arrived(uid, now)
    demand.wait(uid, now, waiting)
    for _ in range(abs(in_flight)):
        (demand.entered if in_flight > 0 else demand.left)(uid, "m", "k", now)


def test_the_mean_is_over_time() -> None:
    demand = Demand(10.0)
    change(demand, "d", 10.0, in_flight=4, arrived=4)
    change(demand, "d", 10.5, in_flight=-4)
    assert demand.report(11.0) == {"d": Load(2.0, 0, 0, 4)}


def test_only_changes_are_reported() -> None:
    demand = Demand(0.0)
    change(demand, "d", 0.0, in_flight=3, waiting=1, arrived=4)
    assert demand.report(1.0) == {"d": Load(4.0, 3, 1, 4)}
    assert demand.report(2.0) == {}
    demand.everything_again()
    assert demand.report(3.0) == {"d": Load(4.0, 3, 1, 4)}


def test_requests_at_each_replica_are_told_when_they_move() -> None:
    demand = Demand(0.0)
    change(demand, "d", 0.0, in_flight=2, arrived=2)
    assert demand.report(1.0, {"d": {"a": 2}}) == {"d": Load(2.0, 2, 0, 2, {"a": 2})}
    assert demand.report(2.0, {"d": {"a": 2}}) == {}
    assert demand.report(3.0, {"d": {"a": 1, "b": 1}}) == {"d": Load(2.0, 2, 0, 2, {"a": 1, "b": 1})}


def test_a_late_report_is_a_mean_of_all_the_time() -> None:
    demand = Demand(0.0)
    change(demand, "d", 0.0, waiting=2, arrived=2)
    demand.report(1.0)
    change(demand, "d", 3.0, waiting=-2, in_flight=2)
    change(demand, "d", 5.0, in_flight=-2)
    assert demand.report(9.0) == {"d": Load(1.0, 0, 0, 2)}


def test_a_deployment_that_is_gone_is_forgotten_once_it_has_no_request() -> None:
    demand = Demand(0.0)
    change(demand, "d", 0.0, waiting=1)
    demand.keep({"e"}, {"e"})
    assert demand.waiting("d") == 1
    change(demand, "d", 0.5, waiting=-1)
    demand.keep({"e"}, {"e"})
    assert demand.report(1.0) == {}
