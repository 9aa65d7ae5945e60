"""When the connections of one worker contradict each other, exactly at the limits."""

from datetime import UTC, datetime, timedelta

import pytest

from controller.decide.worker_phases import quarantine_after
from controller.domain.workers import PastHello

NOW = datetime(2026, 11, 22, tzinfo=UTC)


def hellos(*seen: tuple[float, str]) -> list[PastHello]:
    return [PastHello(NOW + timedelta(seconds=at), identity, f"host-{identity}") for at, identity in seen]


def turns(n: int, every_s: float = 1.0, identities: str = "ab") -> list[PastHello]:
    return hellos(*((every_s * i, identities[i % len(identities)]) for i in range(n)))


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        pytest.param([], None, id="none"),
        pytest.param(turns(1), None, id="the first"),
        pytest.param(turns(5), None, id="four take-overs"),
        pytest.param(turns(6), "two_identities", id="five take-overs"),
        pytest.param(turns(6, 11.9), "two_identities", id="five within a minute"),
        pytest.param(turns(6, 12.0), None, id="five in just a minute"),
        pytest.param(turns(6, identities="a"), None, id="five reconnections of one agent"),
        pytest.param(turns(7, identities="a"), "reconnects_too_often", id="six reconnections of one agent"),
        pytest.param(turns(7, 10.0, identities="a"), None, id="six in just a minute"),
        pytest.param(turns(6, identities="abc"), "two_identities", id="three agents"),
        pytest.param(hellos((-300, "a"), (-200, "b"), (-100, "a"), (0, "b")), None, id="take-overs far apart"),
        pytest.param(hellos((500, "a"), (500, "b"), (500, "a"), (0, "b")), None, id="the clock was set back"),
    ],
)
def test_a_quarantine_follows_from_the_newest_hellos(seen: list[PastHello], reason: str | None) -> None:
    found = quarantine_after(seen)
    assert (found and found.reason) == reason
    if found is not None:
        assert found.until == seen[-1].at + timedelta(seconds=60)


def test_it_names_the_address_of_each_agent() -> None:
    found = quarantine_after(turns(6))
    assert found is not None
    assert set(found.addresses) == {"host-a", "host-b"}
