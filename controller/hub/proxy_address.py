"""The address of an agent's proxy, for controller and gateways.

A name is resolved once, and its judged address is stored, because a name could change after the check.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias

import psutil

from controller.hub.agent_messages import MalformedMessageError
from schemas.wire import Hello
from schemas.worker_labels import TRUSTED_LABELS

SETTING: Final = "GPUWARD_ADVERTISE_NETWORKS"
Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_RESOLVED_AT_ONCE: Final = 8
_RESOLVE_LIMIT_S: Final = 3.0
_MAX_ADDRESSES: Final = 16  # of one name
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_ADDRESS: Final = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?):(?P<port>\d{1,5})"
)


class AdvertiseRefusedError(Exception):
    """The address that an agent advertises is not believed; the text has the reason and the fix."""


@dataclass(frozen=True, slots=True)
class HostTrust:
    """The trust in a host's statements about itself.

    Attributes:
        labels: patterns of the keys of labels that it may not set.
        networks: in which any host may advertise another address than its own.
    """

    labels: Sequence[str] = TRUSTED_LABELS
    networks: Sequence[Network] = ()


DEFAULT_TRUST: Final = HostTrust()


@dataclass(frozen=True, slots=True)
class AddressRules:
    """The rules for an advertised address.

    Attributes:
        worker: its name.
        peer: the address from which its agent connects; None: unknown.
        own: addresses of this controller's host.
        networks: allowed for the address; None: any.
        known: the last accepted HOST:PORT; empty without one.
    """

    worker: str
    peer: Address | None
    own: Collection[Address]
    networks: Sequence[Network] | None
    known: str = ""

    @property
    def shares_host(self) -> bool:
        """Whether the agent runs on this controller's host."""
        return self.peer is not None and (self.peer.is_loopback or self.peer in self.own)


def proxy_address(hello: Hello, peer: str | None) -> str:
    """HOST:PORT of the agent's proxy: as advertised, else the address from which the agent connects.

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
    if host != peer and (ip := literal(host)) is not None and _differs_by_host(ip):
        raise MalformedMessageError(f"advertise: {host} is link-local, multicast or unspecified; name the host's own")
    return address


def judged_address(address: str, resolved: Iterable[Address], rules: AddressRules) -> str:
    """The address to connect to. Of a name's addresses it is the first accepted one.

    The address from which the agent connects comes first, then addresses of its family, IPv4 or IPv6: the agent may
    listen on one family alone, or have a route for one alone.

    Args:
        address: HOST:PORT as advertised.
        resolved: the addresses of its host; empty: unknown now, so the last accepted address stays.
        rules: to judge by.

    Raises:
        AdvertiseRefusedError: no address is accepted.
    """
    host, _, port = address.rpartition(":")
    if rules.shares_host:
        return address
    whys, written = [], literal(host)
    for ip in _likeliest(resolved, rules.peer) if written is None else (written,):
        shown = f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"  # noqa: PLR2004 - of IP
        if not (why := _refusal(ip, shown, rules)):
            return shown
        whys.append(why)
    if not whys and rules.known:
        known = literal(rules.known.rpartition(":")[0])
        if known is None or not (why := _refusal(known, rules.known, rules)):
            return rules.known
        whys.append(why)
    raise AdvertiseRefusedError(
        f"--advertise {host}: " + (whys[0] if whys else "the controller cannot resolve this name; write an address")
    )


def _likeliest(addresses: Iterable[Address], peer: Address | None) -> Sequence[Address]:
    """Sorts by how likely an agent that connects from `peer` can be reached by them."""
    return sorted(addresses, key=lambda ip: (ip != peer, peer is not None and ip.version != peer.version))


def _refusal(ip: Address, shown: str, rules: AddressRules) -> str:
    """The reason why an address is not accepted; empty if it is."""
    if ip == rules.peer:
        return ""
    if ip.is_loopback or _differs_by_host(ip):
        return f"{ip} means another place on each host; name the host's own address"
    if ip in rules.own:
        return f"{ip} is the controller's own address; name that of the agent's host"
    networks = rules.networks
    if networks is None or shown == rules.known or any(ip in network for network in networks):
        return ""
    network = f"{ip}/{ip.max_prefixlen}"
    return (
        f"{ip} is not the address that the agent connects from ({rules.peer or 'unknown'}); to allow it: gpuward label "
        f"worker {rules.worker} --advertise-network {network}, or {SETTING}={network} on the controllers"
    )


def _differs_by_host(ip: Address) -> bool:
    """Whether each host reaches something else by the address. A cloud's metadata server has such an address."""
    return ip.is_link_local or ip.is_multicast or ip.is_unspecified


class ProxyNames:
    """Resolves names in its own threads, so that a slow resolver delays only other agents' names."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVED_AT_ONCE, thread_name_prefix="proxy-names")

    async def resolve(self, host: str) -> tuple[Address, ...]:
        """The addresses of a host, in the resolver's order; empty if they are unknown now."""
        if (address := literal(host)) is not None:
            return (address,)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_RESOLVE_LIMIT_S):
                entries = await loop.run_in_executor(
                    self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                )
        except (OSError, TimeoutError, UnicodeError, RuntimeError):  # RuntimeError: it was closed
            return ()
        addresses = (literal(str(entry[4][0])) for entry in entries)
        return tuple(dict.fromkeys(ip for ip in addresses if ip is not None))[:_MAX_ADDRESSES]

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def literal(text: str) -> Address | None:
    """An address in any form that sockets accept, such as 0x7f000001; None for a name."""
    text = text.strip("[]")
    try:
        address: Address = ipaddress.IPv4Address(socket.inet_aton(text))
    except (OSError, UnicodeError):
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return None
    return getattr(address, "ipv4_mapped", None) or address


def own_addresses() -> frozenset[Address]:
    """The addresses of this host's interfaces."""
    interfaces = psutil.net_if_addrs().values()
    addresses = (literal(entry.address) for entries in interfaces for entry in entries
                 if entry.family in (socket.AF_INET, socket.AF_INET6))  # fmt: skip
    return frozenset(ip for ip in addresses if ip is not None)
