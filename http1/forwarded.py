"""The sender of a request behind proxies: only a trusted proxy's `X-Forwarded-*` counts."""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# The gateway's own words to the controller. It passes on no header of these names, nor of X-Forwarded-*.
GATEWAY_HEADER: Final = "X-Gpuward-Gateway"  # the secret by which the controller believes the other fields
BEHIND_PROXY_HEADER: Final = "X-Gpuward-Behind-Proxy"  # a trusted proxy has sent the request
SCHEMES: Final = frozenset({"http", "https"})
_STATED_BY_PROXIES: Final = frozenset({"forwarded", "x-forwarded-for", "x-real-ip", "via"})


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from: the client's address, and the scheme that it used; None: the server's own."""

    address: str
    scheme: str | None = None


class TrustedProxies:
    """The networks of the proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` count."""

    def __init__(self, networks: Iterable[Network] = ()) -> None:
        self._networks = tuple(networks)

    def __contains__(self, address: object) -> bool:
        """Whether an address is such a proxy's."""
        parsed = _parse(str(address)) if self._networks else None
        return parsed is not None and any(parsed in network for network in self._networks)

    def origin(self, peer: str, headers: Mapping[str, str], forwarded_for: Iterable[str]) -> Origin:
        """The origin of a request.

        Args:
            peer: address of the other side of the connection.
            headers: the request's headers.
            forwarded_for: its `X-Forwarded-For` headers, in order.
        """
        if peer not in self:
            return Origin(peer)
        address = peer
        for entry in reversed([part for value in forwarded_for for part in value.split(",")]):
            parsed = _parse(_without_port(entry.strip()))
            if parsed is None:
                break  # an unknown sender wrote what is to its left
            address = str(parsed)
            if address not in self:
                break
        scheme = headers.get("X-Forwarded-Proto", "").rpartition(",")[2].strip().lower()
        return Origin(address, scheme if scheme in SCHEMES else None)


def is_from_this_host(peer: str, names: Iterable[str]) -> bool:
    """Whether a request comes from the server's own host, and no proxy there states that it passes it on.

    Args:
        peer: address of the other side of the connection; empty: a Unix socket.
        names: the names of its fields, in upper or lower case.
    """
    if not _STATED_BY_PROXIES.isdisjoint(name.lower() for name in names):
        return False
    address = _parse(peer)
    return not peer or (address is not None and address.is_loopback)


def _without_port(entry: str) -> str:
    """`[::1]:80`, `10.0.0.1:80` and bare addresses without brackets and port."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


def _parse(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed
