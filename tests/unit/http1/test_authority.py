"""A private authority in a folder: what it makes, when it renews, and what it refuses."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from http1.tls.authority import ALWAYS, Authority, AuthorityError
from http1.tls.issue import (
    SERVER_DAYS,
    checked_name,
    describe,
    is_signed_by,
    issue_server,
    make_authority,
    public_key_hash,
)

NOW = datetime.now(UTC)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path)
    made.make(NOW)
    made.issue_own(["gpuward.example", "10.0.0.1"], NOW)
    return made


def test_only_the_owner_reads_what_it_makes(authority: Authority) -> None:
    for file in (authority.certificate, authority.key, authority.server, authority.server.parent):
        assert file.stat().st_mode & 0o077 == 0
    assert not list(authority.server.parent.glob(".*"))


def test_the_server_has_the_names_and_those_of_every_host(authority: Authority) -> None:
    server, own = describe(authority.server.read_bytes()), describe(authority.certificate.read_bytes())
    assert server.names == ("gpuward.example", "10.0.0.1", *ALWAYS)
    assert (server.is_authority, own.is_authority) == (False, True)
    assert server.ends - server.begins < timedelta(days=SERVER_DAYS + 1)
    assert is_signed_by(authority.server.read_bytes(), authority.certificate.read_bytes())
    assert authority.public_key_hash() == public_key_hash(authority.certificate.read_bytes())


def test_a_certificate_is_renewed_when_a_third_of_its_time_is_left(authority: Authority) -> None:
    before = authority.server.read_bytes()
    assert not authority.renew(NOW + timedelta(days=SERVER_DAYS * 2 / 3 - 1))
    assert authority.server.read_bytes() == before
    later = NOW + timedelta(days=SERVER_DAYS * 2 / 3 + 1)
    assert authority.renew(later)
    assert describe(authority.server.read_bytes()).names == describe(before).names
    assert not authority.renew(later)


def test_a_certificate_of_another_authority_is_replaced(authority: Authority) -> None:
    other = issue_server(make_authority(NOW), ["gpuward.example"], NOW)
    authority.server.write_bytes(other.certificate + other.key)
    assert authority.renew(NOW)
    assert is_signed_by(authority.server.read_bytes(), authority.certificate.read_bytes())


def test_without_its_key_certificates_are_used_and_not_renewed(authority: Authority) -> None:
    authority.key.unlink()
    assert not authority.renew(NOW + timedelta(days=SERVER_DAYS))
    authority.server.unlink()
    with pytest.raises(AuthorityError, match=r"ca\.key"):
        authority.renew(NOW)


def test_a_second_one_is_not_made(authority: Authority) -> None:
    with pytest.raises(AuthorityError, match="already"):
        authority.make(NOW)


@pytest.mark.parametrize("file", ["certificate", "key", "server"])
def test_a_damaged_file_is_named(authority: Authority, file: str) -> None:
    path: Path = getattr(authority, file)
    path.write_text("nothing")
    with pytest.raises(AuthorityError, match="tls"):
        authority.renew(NOW + timedelta(days=SERVER_DAYS))


@pytest.mark.parametrize("name", ["", "-a", "a_b", "a b", "http://a", "a..b", "a" * 300, "é"])
def test_what_is_not_a_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="DNS name"):
        checked_name(name)


@pytest.mark.parametrize("name", ["a", "a-b.example", "*.example", "10.0.0.1", "::1"])
def test_names_and_addresses(name: str) -> None:
    assert checked_name(name) == name
