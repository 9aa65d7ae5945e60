"""In flight and waiting as a mean over time: what came and went between two reports counts."""

from controller.live.demand import GatewayLoad as Load
from gateway.queueing.demand import Demand


def test_the_mean_is_over_time() -> None:
    demand = Demand(10.0)
    demand.change("d", 10.0, in_flight=4, arrived=4)
    demand.change("d", 10.5, in_flight=-4)
    assert demand.report(11.0) == {"d": Load(2.0, 0, 0, 4)}


def test_only_changes_are_reported() -> None:
    demand = Demand(0.0)
    demand.change("d", 0.0, in_flight=3, waiting=1, arrived=4)
    assert demand.report(1.0) == {"d": Load(4.0, 3, 1, 4)}
    assert demand.report(2.0) == {}
    demand.everything_again()
    assert demand.report(3.0) == {"d": Load(4.0, 3, 1, 4)}


def test_requests_at_each_replica_are_told_when_they_move() -> None:
    demand = Demand(0.0)
    demand.change("d", 0.0, in_flight=2, arrived=2)
    assert demand.report(1.0, {"d": {"a": 2}}) == {"d": Load(2.0, 2, 0, 2, {"a": 2})}
    assert demand.report(2.0, {"d": {"a": 2}}) == {}
    assert demand.report(3.0, {"d": {"a": 1, "b": 1}}) == {"d": Load(2.0, 2, 0, 2, {"a": 1, "b": 1})}


def test_a_late_report_is_a_mean_of_all_the_time() -> None:
    demand = Demand(0.0)
    demand.change("d", 0.0, waiting=2, arrived=2)
    demand.report(1.0)
    demand.change("d", 3.0, waiting=-2, in_flight=2)
    demand.change("d", 5.0, in_flight=-2)
    assert demand.report(9.0) == {"d": Load(1.0, 0, 0, 2)}


def test_a_deployment_that_is_gone_is_forgotten_once_it_has_no_request() -> None:
    demand = Demand(0.0)
    demand.change("d", 0.0, waiting=1)
    demand.keep({"e"})
    assert demand.waiting("d") == 1
    demand.change("d", 0.5, waiting=-1)
    demand.keep({"e"})
    assert demand.report(1.0) == {}
