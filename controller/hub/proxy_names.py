"""The addresses behind the names that agents advertise. A name is resolved once, and what is judged is connected to."""

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import psutil

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_RESOLVED_AT_ONCE: Final = 8
_LIMIT_S: Final = 3.0
_MOST: Final = 16  # addresses of one name


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
            async with asyncio.timeout(_LIMIT_S):
                found = await loop.run_in_executor(
                    self._threads, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                )
        except (OSError, TimeoutError, UnicodeError, RuntimeError):  # RuntimeError: it was closed
            return ()
        addresses = (literal(str(one[4][0])) for one in found)
        return tuple(dict.fromkeys(one for one in addresses if one is not None))[:_MOST]

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
