"""Limits tries per minute by name, such as an address or a key, in bounded memory. Pure.

A try counts when it starts and is taken back when it succeeds, so that concurrent tries count too.
"""

import ipaddress
import math
from collections import OrderedDict, deque
from typing import Final

WITHIN_S: Final = 60.0
MAX_NAMES: Final = 4096  # beyond it the least recently used name is dropped


class Tries:
    """At most `most` tries of a name within `WITHIN_S`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, name: str, now_s: float) -> int:
        """Seconds until the next try, rounded up; 0: it is allowed now."""
        tries = self._tries.get(name, deque())
        while tries and now_s - tries[0] >= WITHIN_S:
            tries.popleft()
        return math.ceil(tries[0] + WITHIN_S - now_s) if len(tries) >= self._most else 0

    def begin(self, name: str, now_s: float) -> int:
        """Counts a try and returns 0; where there are too many, counts nothing and returns `wait_s`."""
        if wait_s := self.wait_s(name, now_s):
            return wait_s
        self._tries.setdefault(name, deque()).append(now_s)
        self._tries.move_to_end(name)
        if len(self._tries) > MAX_NAMES:
            self._tries.popitem(last=False)
        return 0

    def take_back(self, name: str, started_s: float) -> None:
        tries = self._tries.get(name)
        if tries is not None and started_s in tries:
            tries.remove(started_s)
            if not tries:
                del self._tries[name]

    def __len__(self) -> int:
        return len(self._tries)


_IPV6_NETWORK_BITS: Final = 64  # a client has all addresses of such a network


def client_of(address: str) -> str:
    """The address; of IPv6 its network."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))
    return str(parsed)
