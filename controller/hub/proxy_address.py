"""Where controller and gateways connect to reach an agent's proxy. Pure."""

import ipaddress
import re
import socket
from typing import Final

from controller.hub.bounds import MalformedMessageError
from schemas.wire import Hello

_ADDRESS: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?):(?P<port>\d{1,5})"
)


def proxy_address(hello: Hello, peer: str | None) -> str:
    """HOST:PORT of the agent's proxy: as advertised, else the address that the agent connects from.

    Raises:
        MalformedMessageError: the address is unknown or invalid.
    """
    if hello.advertise is not None:
        address = hello.advertise
    elif peer is None:
        raise MalformedMessageError("advertise: is required, since the agent's own address is unknown; set --advertise")
    else:
        address = f"[{peer}]:{hello.proxy_port}" if ":" in peer else f"{peer}:{hello.proxy_port}"
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 2**16:
        field = "advertise" if hello.advertise is not None else "proxy_port"
        raise MalformedMessageError(f"{field}: must be HOST:PORT, such as gpu-1.example:7070, got {address!r}")
    host = match["host"].strip("[]")
    if host != peer and _means_another_place_on_each_host(host):
        raise MalformedMessageError(f"advertise: {host} is link-local, multicast or unspecified; name the host's own")
    return address


def _means_another_place_on_each_host(host: str) -> bool:
    """Whether a host is written as such an address: a cloud's metadata server has one."""
    try:
        address = ipaddress.ip_address(socket.inet_aton(host))  # also takes 0xa9fea9fe, which resolvers do
    except OSError:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False  # a name
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_link_local or address.is_multicast or address.is_unspecified
