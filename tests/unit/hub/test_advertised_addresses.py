"""Which address of an agent's proxy is believed: its own, that of a network that was allowed, never another host's."""

import asyncio
import ipaddress
from dataclasses import replace

import pytest

from controller.hub.proxy_address import (
    Address,
    AddressRules,
    AdvertiseRefusedError,
    ProxyNames,
    judged_address,
    literal,
    own_addresses,
)

PEER, OWN = ipaddress.ip_address("10.0.0.7"), ipaddress.ip_address("10.0.0.1")
ELSEWHERE = ipaddress.ip_address("10.9.0.5")
JOINED = AddressRules("gpu-1", PEER, frozenset({OWN, ipaddress.ip_address("127.0.0.1")}), ())
BEFORE = replace(JOINED, networks=None)


def behind(*addresses: str) -> tuple[Address, ...]:
    return tuple(map(ipaddress.ip_address, addresses))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.8.8", "::1", "0x7f000001", "2130706433", "::ffff:127.0.0.1", "169.254.169.254",
             "fe80::1", "::", "224.0.0.1", "10.0.0.1", "::ffff:10.0.0.1"],
)  # fmt: skip
@pytest.mark.parametrize("facts", [JOINED, BEFORE, replace(JOINED, networks=(ipaddress.ip_network("0.0.0.0/0"),))])
def test_no_other_place_is_believed(host: str, facts: AddressRules) -> None:
    address = literal(host)
    assert address is not None
    for found in ((address,), (address, address)):
        with pytest.raises(AdvertiseRefusedError):
            judged_address(f"{host}:7070", found, facts)
    # A name that leads there is the same, whatever was accepted before.
    with pytest.raises(AdvertiseRefusedError):
        judged_address("gpu-1.lan:7070", (address,), replace(facts, known=f"{host}:7070"))
    with pytest.raises(AdvertiseRefusedError):
        judged_address("gpu-1.lan:7070", (), replace(facts, known=f"{host}:7070"))


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "10.0.0.1"])
def test_an_agent_of_the_same_host_may_name_any(peer: str) -> None:
    facts = replace(JOINED, peer=ipaddress.ip_address(peer))
    for address in ("127.0.0.1:80", "10.0.0.1:80", "gpu-1.lan:80"):
        assert judged_address(address, (), facts) == address


@pytest.mark.parametrize(
    ("facts", "accepted"),
    [
        (JOINED, False),
        (BEFORE, True),
        (replace(JOINED, networks=(ipaddress.ip_network("10.9.0.0/24"),)), True),
        (replace(JOINED, networks=(ipaddress.ip_network("10.8.0.0/24"),)), False),
        (replace(JOINED, networks=(ipaddress.ip_network("fd00::/8"),)), False),
        (replace(JOINED, known="10.9.0.5:7070"), True),  # accepted when it connected from there
        (replace(JOINED, known="10.9.0.5:7071"), False),
        (replace(JOINED, peer=None), False),
    ],
)
def test_another_address_than_its_own(facts: AddressRules, *, accepted: bool) -> None:
    for host in ("10.9.0.5", "gpu-1.lan"):
        if accepted:
            assert judged_address(f"{host}:7070", (ELSEWHERE,), facts) == "10.9.0.5:7070"
        else:
            with pytest.raises(AdvertiseRefusedError, match=r"gpuward label worker gpu-1 .*10\.9\.0\.5/32"):
                judged_address(f"{host}:7070", (ELSEWHERE,), facts)


def test_of_a_name_the_judged_address_is_connected_to() -> None:
    assert judged_address("gpu-1.lan:80", (PEER,), JOINED) == "10.0.0.7:80"
    assert judged_address("gpu-1.lan:80", (*behind("127.0.0.1"), PEER), JOINED) == "10.0.0.7:80"
    six = replace(JOINED, peer=ipaddress.ip_address("fd00::7"))
    assert judged_address("[fd00::7]:80", behind("fd00::7"), six) == "[fd00::7]:80"


def test_of_several_addresses_the_one_that_the_agent_connects_from_is_taken() -> None:
    """A proxy listens on IPv4 by default, so that the first address of a name may have no listener."""
    six, private = "fd00::7", "10.9.0.7"
    assert judged_address("gpu-1.lan:80", behind(six, private, "10.0.0.7"), BEFORE) == "10.0.0.7:80"
    # Behind an address translation none is the agent's own, but its kind of address has a way between the two.
    assert judged_address("gpu-1.lan:80", behind(six, private, "10.9.0.8"), BEFORE) == f"{private}:80"
    assert judged_address("gpu-1.lan:80", behind(six), BEFORE) == f"[{six}]:80"
    other = replace(BEFORE, peer=ipaddress.ip_address("fd00::9"))
    assert judged_address("gpu-1.lan:80", behind(private, six), other) == f"[{six}]:80"


def test_a_name_that_does_not_resolve_leaves_what_was_accepted() -> None:
    assert judged_address("gpu-1.lan:80", (), replace(JOINED, known="10.0.0.7:80")) == "10.0.0.7:80"
    with pytest.raises(AdvertiseRefusedError, match="resolve"):
        judged_address("gpu-1.lan:80", (), BEFORE)


def test_names_and_own_addresses_are_found() -> None:
    async def resolve(host: str) -> tuple[Address, ...]:
        names = ProxyNames()
        try:
            return await names.resolve(host)
        finally:
            names.close()

    assert asyncio.run(resolve("[::1]")) == behind("::1")
    assert ipaddress.ip_address("127.0.0.1") in asyncio.run(resolve("localhost"))
    assert asyncio.run(resolve("no-such-host.invalid")) == ()
    assert ipaddress.ip_address("127.0.0.1") in own_addresses()
