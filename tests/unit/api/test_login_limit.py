"""Wrong keys by address: ten within a minute, in bounded memory."""

from controller.api.login_limit import MAX_ADDRESSES, MOST_WRONG, LoginLimit


def test_the_eleventh_within_a_minute_waits_for_the_first_to_be_a_minute_old() -> None:
    limit = LoginLimit()
    for second in range(MOST_WRONG):
        assert limit.wait_s("192.0.2.1", second) == 0
        limit.note_wrong("192.0.2.1", second)
    assert limit.wait_s("192.0.2.1", 10) == 50
    assert limit.wait_s("192.0.2.1", 59.5) == 1
    assert limit.wait_s("192.0.2.1", 60) == 0
    assert limit.wait_s("192.0.2.2", 10) == 0


def test_one_network_of_ipv6_is_one_client() -> None:
    limit = LoginLimit()
    for n in range(MOST_WRONG):
        limit.note_wrong(f"2001:db8::{n}", 0)
    assert limit.wait_s("2001:db8::ffff", 1) == 59
    assert limit.wait_s("2001:db8:0:1::1", 1) == 0
    for _ in range(MOST_WRONG):
        limit.note_wrong("::ffff:192.0.2.7", 0)
    assert limit.wait_s("::ffff:192.0.2.8", 1) == 0


def test_memory_is_bounded() -> None:
    limit = LoginLimit()
    for n in range(MAX_ADDRESSES + 10):
        limit.note_wrong(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}", 0)
    assert len(limit) == MAX_ADDRESSES
