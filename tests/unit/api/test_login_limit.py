"""Tries by name: so many within a minute, counted at once, in bounded memory."""

from controller.api.login_limit import MAX_NAMES, MOST_OF_KEY, MOST_RIGHT, MOST_WRONG, LoginLimit, Tries, client_of


def test_the_eleventh_within_a_minute_waits_for_the_first_to_be_a_minute_old() -> None:
    tries = Tries(MOST_WRONG)
    assert [tries.begin("a", second) for second in range(MOST_WRONG)] == [0] * MOST_WRONG
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


def test_a_team_that_shares_a_key_is_not_locked_out_by_one_of_it() -> None:
    limit = LoginLimit()
    assert [limit.begin_right("k", "192.0.2.1", 0) for _ in range(MOST_RIGHT)] == [0] * MOST_RIGHT
    assert limit.begin_right("k", "192.0.2.1", 1) == 59
    others = [limit.begin_right("k", f"192.0.2.{n}", 1) for n in range(2, 2 + MOST_OF_KEY - MOST_RIGHT)]
    assert others == [0] * (MOST_OF_KEY - MOST_RIGHT)
    assert limit.begin_right("k", "198.51.100.1", 1) == 59, "in all"
    assert limit.begin_right("other", "192.0.2.1", 1) == 0
    limit.take_back_right("k", "192.0.2.1", 0)
    assert limit.begin_right("k", "198.51.100.1", 1) == 0


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
