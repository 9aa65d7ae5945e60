"""Which addresses webhooks may reach. A policy's URL must not make the controller call what only it can reach.

Each address is judged when its socket is made, and the socket goes to that address: a name that leads elsewhere the
next time gains nothing, and neither does an odd way of writing an address.
"""

import errno
import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
SETTING: Final = "GPUWARD_WEBHOOKS_MAY_REACH"
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class RefusedTargetError(OSError):
    """The address may not be reached; the message names it and the setting."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.EACCES, message)


def refusal(address: str, allowed: Sequence[Network]) -> str:
    """Why a webhook may not go to this IP address; empty: it may."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return f"{address[:80]!r} is not a valid address"
    judged = (ip.ipv4_mapped or ip) if isinstance(ip, ipaddress.IPv6Address) else ip
    if any(judged in network or ip in network for network in allowed) or _is_public(judged):
        return ""
    return (
        f"{address} is not a public address, so webhooks may not reach it; "
        f"an administrator may allow it on the controller: {SETTING}={judged}/{judged.max_prefixlen}"
    )


def judging_sockets(allowed: Sequence[Network]) -> Callable[[Any], socket.socket]:
    """Makes sockets for connections of aiohttp, for addresses that may be reached alone.

    Args:
        allowed: networks that may be reached though they are not public.
    """
    networks = tuple(allowed)

    def make(info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        family, kind, protocol, _, address = info
        if why := refusal(str(address[0]), networks):
            raise RefusedTargetError(why)
        return socket.socket(family, kind, protocol)

    return make


def _is_public(ip: Address) -> bool:
    if not ip.is_global or ip.is_multicast or (ip.is_reserved and ip not in _NAT64):
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return True
    if ip in _NAT64:
        return _is_public(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF))
    carried = [ip.sixtofour, *(ip.teredo or ())]  # IPv4 addresses for which it stands
    return ip in _UNICAST and all(one is None or _is_public(one) for one in carried)
