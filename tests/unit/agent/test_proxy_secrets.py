"""Which secrets the agent's proxy accepts while they rotate."""

from typing import Any

from msgspec.structs import replace

from agent.engine_proxy.secrets import PREVIOUS_KEPT_S, is_other_secret, used_from_now_on
from agent.state.host_state import HostState

NOW_S = 1_700_000_000.0


def changed(facts: HostState, **changes: Any) -> HostState:
    return replace(facts, **changes)


def accepted(facts: HostState, now_s: float = NOW_S) -> set[str]:
    others = {one for one in ("a", "b", "c", "") if is_other_secret(facts, f"Bearer {one}".encode(), now_s)}
    return others | ({facts.proxy_secret} if facts.proxy_secret else set())


def test_two_are_valid_from_the_message_until_a_day_after_the_change() -> None:
    facts = HostState(proxy_secret="a")
    assert accepted(facts) == {"a"}
    facts = changed(facts, next_proxy_secret="b")
    assert accepted(facts) == {"a", "b"}
    facts = changed(facts, **used_from_now_on(facts, "a", NOW_S))
    assert accepted(facts) == {"a", "b"}, "a connection with the present credential changes nothing"
    facts = changed(facts, **used_from_now_on(facts, "b", NOW_S))
    assert (facts.proxy_secret, accepted(facts)) == ("b", {"a", "b"})
    assert accepted(facts, NOW_S + PREVIOUS_KEPT_S - 1) == {"a", "b"}
    assert accepted(facts, NOW_S + PREVIOUS_KEPT_S) == {"b"}
    assert accepted(facts, NOW_S - 10 * PREVIOUS_KEPT_S) == {"b"}, "the clock was set back"


def test_a_restored_database_knows_the_one_before() -> None:
    facts = HostState(proxy_secret="a", next_proxy_secret="b")
    facts = changed(facts, **used_from_now_on(facts, "b", NOW_S))
    facts = changed(facts, **used_from_now_on(facts, "a", NOW_S))
    assert (facts.proxy_secret, accepted(facts)) == ("a", {"a", "b"})


def test_nothing_is_accepted_before_the_first_welcome() -> None:
    assert accepted(HostState()) == set()
    assert used_from_now_on(HostState(), "a", NOW_S) == {"proxy_secret": "a", "next_proxy_secret": None}
