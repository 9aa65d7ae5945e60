"""Error events of the driver between two readings: none hides another, and their number is bounded."""

from typing import Any

from agent.gpus.nvml_xids import CountedEvents


def event(xid: int, uuid: str = "GPU-a", gpu_instance: int | None = None) -> dict[str, Any]:
    return {"uuid": uuid, "xid": xid, "gpu_instance": gpu_instance}


def test_a_grave_event_stays_under_a_storm_of_others() -> None:
    events = CountedEvents()
    events.add(event(79, "GPU-b"))
    for _ in range(100_000):
        events.add(event(13))
    assert events.counts() == [event(79, "GPU-b") | {"count": 1}, event(13) | {"count": 100_000}]
    assert events.dropped == 0


def test_the_newest_comes_last_and_slices_are_apart() -> None:
    events = CountedEvents()
    for one in (event(13), event(94, gpu_instance=2), event(94), event(13)):
        events.add(one)
    assert [(told["xid"], told["gpu_instance"], told["count"]) for told in events.counts()] == [
        (94, 2, 1),
        (94, None, 1),
        (13, None, 2),
    ]


def test_kinds_beyond_the_bound_are_counted() -> None:
    events = CountedEvents()
    for xid in range(1_100):
        events.add(event(xid))
    for xid in range(5):
        events.add(event(xid))
    assert len(events.counts()) == 1_000
    assert events.dropped == 100
