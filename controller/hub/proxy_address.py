"""Where controller and gateways connect to reach an agent's proxy.

A name is resolved once, and the address that is judged is connected to.
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
    """The address that an agent advertises is not believed; the text says why and what allows it."""


@dataclass(frozen=True, slots=True)
class HostTrust:
    """What a host is believed of itself.

    Attributes:
        labels: patterns of keys of labels that it does not set.
        networks: within which any host may advertise another address than its own.
    """

    labels: Sequence[str] = TRUSTED_LABELS
    networks: Sequence[Network] = ()


DEFAULT_TRUST: Final = HostTrust()


@dataclass(frozen=True, slots=True)
class AddressFacts:
    """What an advertised address is judged by.

    Attributes:
        worker: its name.
        peer: the address that its agent connects from; None: unknown.
        own: addresses of this controller's host.
        networks: in which it may be; None: anywhere.
        known: HOST:PORT that was accepted last; empty: none was.
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
    if host != peer and (ip := literal(host)) is not None and _means_another_place_on_each_host(ip):
        raise MalformedMessageError(f"advertise: {host} is link-local, multicast or unspecified; name the host's own")
    return address


def judged_address(address: str, found: Iterable[Address], facts: AddressFacts) -> str:
    """The address to connect to: of a name one of its addresses that is accepted, since a name may change.

    It is the one that the agent connects from, else the first of that kind, IPv4 or IPv6: the agent may listen on one
    kind alone, or there may be no way to it by the other.

    Args:
        address: HOST:PORT as the agent advertises it.
        found: the addresses of its host; none: they are unknown now, and what was accepted last stays.
        facts: what it is judged by.

    Raises:
        AdvertiseRefusedError: none is accepted.
    """
    host, _, port = address.rpartition(":")
    if facts.shares_host:
        return address
    whys, written = [], literal(host)
    for ip in _likeliest(found, facts.peer) if written is None else (written,):
        shown = f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"  # noqa: PLR2004 - of IP
        if not (why := _refusal(ip, shown, facts)):
            return shown
        whys.append(why)
    if not whys and facts.known:
        known = literal(facts.known.rpartition(":")[0])
        if known is None or not (why := _refusal(known, facts.known, facts)):
            return facts.known
        whys.append(why)
    raise AdvertiseRefusedError(
        f"--advertise {host}: " + (whys[0] if whys else "the controller cannot resolve this name; write an address")
    )


def _likeliest(found: Iterable[Address], peer: Address | None) -> Sequence[Address]:
    """These addresses, those by which an agent that connects from there can be reached first."""
    return sorted(found, key=lambda ip: (ip != peer, peer is not None and ip.version != peer.version))


def _refusal(ip: Address, shown: str, facts: AddressFacts) -> str:
    """Why an address is not accepted; empty: it is."""
    if ip == facts.peer:
        return ""
    if ip.is_loopback or _means_another_place_on_each_host(ip):
        return f"{ip} means another place on each host; name the host's own address"
    if ip in facts.own:
        return f"{ip} is the controller's own address; name that of the agent's host"
    networks = facts.networks
    if networks is None or shown == facts.known or any(ip in network for network in networks):
        return ""
    network = f"{ip}/{ip.max_prefixlen}"
    return (
        f"{ip} is not the address that the agent connects from ({facts.peer or 'unknown'}); to allow it: gpuward label "
        f"worker {facts.worker} --advertise-network {network}, or {SETTING}={network} on the controllers"
    )


def _means_another_place_on_each_host(ip: Address) -> bool:
    """Whether an address is such a one: a cloud's metadata server has one."""
    return ip.is_link_local or ip.is_multicast or ip.is_unspecified


class ProxyNames:
    """Resolves names in threads of its own: a slow resolver holds up nothing but other agents' names."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVED_AT_ONCE, thread_name_prefix="proxy-names")

    async def resolve(self, host: str) -> tuple[Address, ...]:
        """The addresses of a host, in the resolver's order; none: unknown now."""
        if (address := literal(host)) is not None:
            return (address,)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_RESOLVE_LIMIT_S):
                found = await loop.run_in_executor(
                    self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                )
        except (OSError, TimeoutError, UnicodeError, RuntimeError):  # RuntimeError: it was closed
            return ()
        addresses = (literal(str(one[4][0])) for one in found)
        return tuple(dict.fromkeys(one for one in addresses if one is not None))[:_MAX_ADDRESSES]

    def close(self) -> None:
        """Waits for no resolver."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def literal(text: str) -> Address | None:
    """An address in any form that sockets take, such as 0x7f000001; None: a name."""
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
    """All addresses of this host's interfaces."""
    found = (literal(one.address) for ones in psutil.net_if_addrs().values() for one in ones
             if one.family in (socket.AF_INET, socket.AF_INET6))  # fmt: skip
    return frozenset(one for one in found if one is not None)
