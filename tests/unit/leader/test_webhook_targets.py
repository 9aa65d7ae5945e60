"""Which addresses webhooks may reach."""

import ipaddress
import socket

import pytest

from controller.leader.webhooks import RefusedTargetError, checked_sockets, refusal

PRIVATE = (
    "127.0.0.1", "127.9.9.9", "0.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "224.0.0.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0",
    "fc00::1", "fec0::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1",
    "2002:7f00:1::", "2001:db8::1", "2130706433", "127.1", "example.com", "",
)  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert refusal(address, ())
    with pytest.raises(RefusedTargetError):
        checked_sockets(())((socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 80)))


@pytest.mark.parametrize("address", ["8.8.8.8", "::ffff:8.8.8.8", "2001:4860:4860::8888", "64:ff9b::808:808"])
def test_public_addresses_are_reached(address: str) -> None:
    assert refusal(address, ()) == ""


@pytest.mark.parametrize(("address", "network"), [
    ("10.1.2.3", "10.1.2.0/24"), ("::ffff:10.1.2.3", "10.1.2.0/24"), ("fc00::1", "fc00::/16"),
    ("127.0.0.1", "127.0.0.1"),
])  # fmt: skip
def test_networks_of_the_setting_are_reached(address: str, network: str) -> None:
    assert refusal(address, (ipaddress.ip_network(network),)) == ""
    assert "GPUWARD_WEBHOOKS_MAY_REACH" in refusal("10.9.9.9", (ipaddress.ip_network(network),))
