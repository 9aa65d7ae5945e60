"""Iterators that threads read: all items come, an error is raised where they are taken, a slow reader slows them."""

import threading
from collections.abc import Iterator

import pytest

from cli.transport.reading import Reading


def test_the_items_of_all_come_until_all_have_ended():
    assert sorted(Reading(iter("ab"), iter(()), iter("c"))) == ["a", "b", "c"]


def test_an_error_of_one_is_raised():
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("broken off")

    items = iter(Reading(broken()))
    assert next(items) == 1
    with pytest.raises(OSError, match="broken off"):
        next(items)


def test_nothing_comes_in_time():
    go_on = threading.Event()

    def late() -> Iterator[str]:
        go_on.wait(20)
        yield "late"

    reading = Reading(late())
    assert reading.take(0.01) is None
    go_on.set()
    assert reading.take(20) == "late"


def test_a_slow_reader_slows_the_iterator():
    given: list[int] = []

    def many() -> Iterator[int]:
        for number in range(1000):
            given.append(number)
            yield number

    reading = Reading(many())
    assert reading.take(20) == 0
    assert reading.take(20) == 1
    assert len(given) < 100
    assert list(reading) == list(range(2, 1000))
