"""Tries by name: so many within a minute, counted at once, in bounded memory."""

from controller.runtime.tries import MAX_NAMES, Tries, client_of

MOST = 10


def test_the_eleventh_within_a_minute_waits_for_the_first_to_be_a_minute_old() -> None:
    tries = Tries(MOST)
    assert [tries.begin("a", second) for second in range(MOST)] == [0] * MOST
    assert tries.begin("a", 10) == 50
    assert tries.begin("a", 59.5) == 1
    assert tries.begin("a", 60) == 0
    assert tries.begin("a", 60) == 1, "the second one is a minute old only then"
    assert tries.begin("b", 10) == 0


def test_what_is_taken_back_does_not_count() -> None:
    tries = Tries(2)
    assert (tries.begin("a", 1), tries.begin("a", 1), tries.begin("a", 1)) == (0, 0, 60)
    tries.take_back("a", 1)
    assert (tries.begin("a", 2), tries.begin("a", 2)) == (0, 59)
    tries.take_back("a", 1)
    tries.take_back("a", 2)
    tries.take_back("a", 2)
    assert len(tries) == 0


def test_one_network_of_ipv6_is_one_client() -> None:
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff") != client_of("2001:db8:0:1::1")
    assert client_of("::ffff:192.0.2.7") != client_of("::ffff:192.0.2.8")
    assert client_of("192.0.2.7") != client_of("192.0.2.8")
    assert client_of("") == ""


def test_memory_is_bounded() -> None:
    tries = Tries(1)
    for n in range(MAX_NAMES + 10):
        tries.begin(str(n), 0)
    assert len(tries) == MAX_NAMES
