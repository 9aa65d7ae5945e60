"""When the disk of a worker counts as full, exactly at the limits."""

import pytest

from controller.decide.disk_pressure import disk_is_full

GIB = 2**30


@pytest.mark.parametrize(
    ("free", "disk", "known", "full"),
    [
        (GIB - 1, 1000 * GIB, False, True),
        (GIB, 1000 * GIB, False, False),
        (GIB, 1000 * GIB, True, True),  # it stays full up to twice as much
        (GIB, 1000 * GIB, None, None),
        (2 * GIB - 1, 1000 * GIB, True, True),
        (2 * GIB, 1000 * GIB, True, False),
        (2 * GIB, 1000 * GIB, None, False),
        (199, 10_000, False, True),  # two percent of a small disk
        (200, 10_000, False, False),
        (399, 10_000, True, True),
        (400, 10_000, True, False),
    ],
)
def test_a_disk_is_full_below_its_limit_until_twice_as_much_is_free(
    free: int, disk: int, known: bool | None, full: bool | None
) -> None:
    assert disk_is_full(free, disk, known=known) is full
