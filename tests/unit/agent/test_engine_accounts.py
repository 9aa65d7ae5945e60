"""Which account an engine gets."""

import os
from pathlib import Path

import pytest

from agent.decide.engine_accounts import UNUSED_UIDS, EngineUser, next_uid, parse_engine_user
from agent.errors import SettingError, SpawnError
from agent.processes import engine_accounts
from agent.processes.engine_accounts import EngineAccounts
from agent.processes.folders import InstanceFolders
from agent.processes.privileges import missing_capabilities
from agent.state.journal import Journal

UIDS = range(100, 104)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engines", EngineUser(user="engines")),
        ("engines:video", EngineUser(user="engines", group="video")),
        ("4711", EngineUser(user="4711")),
        ("100-103:44", EngineUser(group="44", uids=UIDS)),
        ("1-1", EngineUser(uids=range(1, 2))),
        ("2147483646-2147483647", EngineUser(uids=range(2**31 - 2, 2**31))),
        (UNUSED_UIDS, EngineUser(uids=range(60706, 61184))),
    ],
)
def test_the_setting_names_an_account_or_a_range(text: str, expected: EngineUser) -> None:
    assert parse_engine_user(text) == expected


@pytest.mark.parametrize("text", ["", ":", "a:b:c", "a b", "200-100", "0-100", "1-9999999999", "1-2147483648", "0-0"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_engine_user(text)


def test_uids_are_given_in_turn_and_none_twice() -> None:
    given: list[int] = []
    for n in range(4):
        last = given[-1] if given else None
        uid = next_uid(UIDS, f"i-{n}", in_use=given, owners={}, last=last)
        assert uid is not None
        given.append(uid)
    assert given == list(UIDS)
    assert next_uid(UIDS, "i-5", in_use=given, owners={}, last=103) is None
    assert next_uid(UIDS, "i-5", in_use={100, 102}, owners={}, last=101) == 103, "a freed uid comes back late"


def test_an_instance_keeps_its_uid_and_others_folders_are_spared() -> None:
    owners = {"i-1": 101, "i-2": 100, "i-3": 0}
    assert next_uid(UIDS, "i-1", in_use=(), owners=owners, last=None) == 101
    assert next_uid(UIDS, "i-1", in_use={101}, owners=owners, last=None) == 102, "something else runs as its uid"
    assert next_uid(UIDS, "i-9", in_use=(), owners=owners, last=103) == 102
    assert next_uid(UIDS, "i-9", in_use={102, 103}, owners=owners, last=103) == 100


@pytest.mark.skipif(os.geteuid() != 0, reason="needs accounts")
def test_two_agents_of_a_host_give_no_uid_twice(tmp_path: Path) -> None:
    """Neither has started anything yet."""
    journals = [Journal(tmp_path / name) for name in ("a", "b")]
    user = parse_engine_user("64890-64890")
    first, second = (EngineAccounts(user, journal, InstanceFolders(tmp_path)) for journal in journals)
    try:
        assert first.allot("i-1") is not None
        with pytest.raises(SpawnError, match="all 1 accounts"):
            second.allot("i-1")
        first.close()
        assert second.allot("i-1") is not None
    finally:
        for one in (first, second, *journals):
            one.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs accounts")
@pytest.mark.parametrize(
    ("setting", "message"),
    [("no-such-user", "no account"), ("root", "other than root"), ("4711:no-such-group", "no group")],
)
def test_an_account_that_the_host_lacks_is_refused(tmp_path: Path, setting: str, message: str) -> None:
    journal = Journal(tmp_path)
    try:
        with pytest.raises(SettingError, match=message):
            EngineAccounts(parse_engine_user(setting), journal, InstanceFolders(tmp_path))
    finally:
        journal.close()


def test_an_agent_without_the_capabilities_refuses_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tgpuward\nCapEff:\t0000000000000081\n")  # CHOWN and SETUID
    missing = missing_capabilities(status)
    assert missing == ("CAP_DAC_OVERRIDE", "CAP_KILL", "CAP_SETGID", "CAP_SYS_PTRACE")
    monkeypatch.setattr(engine_accounts, "missing_capabilities", lambda: missing)
    journal = Journal(tmp_path)
    try:
        with pytest.raises(SettingError, match="lacks CAP_DAC_OVERRIDE, CAP_KILL"):
            EngineAccounts(parse_engine_user("4711"), journal, InstanceFolders(tmp_path))
    finally:
        journal.close()
