"""The database's clock was set back by an hour: timestamps in the future count for nothing."""

from datetime import timedelta

from controller.decide.instances.decide import decide as decide_deployment
from controller.decide.worker_phases import decide as decide_workers
from controller.domain.phases import WorkerPhase
from controller.domain.restart_delays import RestartSettings
from controller.domain.workers import WorkerSettings, WorkersSnapshot, WorkerState
from support.builders.facts import NOW, deployment, instance, process

HOUR = timedelta(hours=1)
SETTINGS = RestartSettings(base_s=10, cap_s=300)


def test_a_backoff_is_never_longer_than_its_maximum() -> None:
    def restarts(wait_s: float) -> int:
        waiting = instance("a", "backoff", processes=(process("exited"),), not_before=NOW + timedelta(seconds=wait_s))
        return len(decide_deployment(deployment(waiting), SETTINGS).restarts)

    assert [restarts(s) for s in (0, 1, 300, 301, 3600)] == [1, 0, 0, 1, 1]


def phase(*, last_seen_s: float, leader_s: float, healthy_s: float, connected: bool = True) -> str | None:
    """The next phase of a ready worker. Times are seconds ago; negative ones lie in the future."""
    worker = WorkerState(
        id="w",
        name="w",
        phase=WorkerPhase.READY,
        reason="",
        session=1,
        reported=True,
        connected=connected,
        clean=False,
        last_seen=NOW - timedelta(seconds=last_seen_s),
        confirmed_dead=False,
        highest_term=1,
        stops_within_s=None,
    )
    snapshot = WorkersSnapshot(NOW, 1, NOW - timedelta(seconds=leader_s), (worker,))
    changes = decide_workers(snapshot, NOW - timedelta(seconds=healthy_s), WorkerSettings()).changes
    return changes[0].new.value if changes else None


def test_a_worker_seen_in_the_future_is_silent_from_the_clock_jump_on() -> None:
    assert phase(last_seen_s=-3600, leader_s=-3000, healthy_s=14) is None
    assert phase(last_seen_s=-3600, leader_s=-3000, healthy_s=15) == "unreachable"
    assert phase(last_seen_s=-3600, leader_s=3000, healthy_s=5, connected=False) == "unreachable"
    assert phase(last_seen_s=2, leader_s=-3000, healthy_s=600) is None
