"""How many logins a minute: wrong keys of one address, and right ones of one key there and in all. Pure.

A try counts when it begins and is taken back when it was right, so that tries at the same time count too.

An address over its limit may still log in with a right key: behind a proxy that is not trusted all browsers are one
address, and one of them must not lock out the others. Beyond the limit a key is only compared with those in memory,
which costs no read of the database. That tells a guesser no more than any request with `Authorization: Bearer` does,
and a key has 256 random bits: it is not this limit that keeps it from being guessed. The limit keeps floods of wrong
keys from the database, and tells a person to look at the key again. Right logins write rows and events, so that they
are limited, too: those of one key from one address, where a broken client may repeat them, and ten times as many in
all, since a team may share a key. Times are arguments.
"""

import ipaddress
import math
from collections import OrderedDict, deque
from typing import Final

MOST_WRONG: Final = 10
MOST_RIGHT: Final = 30
MOST_OF_KEY: Final = 300  # from all addresses
WITHIN_S: Final = 60.0
MAX_NAMES: Final = 4096  # beyond it the one that tried longest ago is forgotten


class Tries:
    """Tries within `WITHIN_S`, by a name.

    Args:
        most: of one name.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def begin(self, name: str, now_s: float) -> int:
        """Counts a try and returns 0; where there are too many, counts none and returns whole seconds to wait."""
        tries = self._tries.setdefault(name, deque())
        while tries and now_s - tries[0] >= WITHIN_S:
            tries.popleft()
        if len(tries) >= self._most:
            return math.ceil(tries[0] + WITHIN_S - now_s)
        tries.append(now_s)
        self._tries.move_to_end(name)
        if len(self._tries) > MAX_NAMES:
            self._tries.popitem(last=False)
        return 0

    def take_back(self, name: str, began_s: float) -> None:
        """The try that began then does not count."""
        tries = self._tries.get(name)
        if tries is not None and began_s in tries:
            tries.remove(began_s)
            if not tries:
                del self._tries[name]

    def __len__(self) -> int:
        return len(self._tries)


class LoginLimit:
    """The limits of logins on this controller.

    Attributes:
        wrong: tries by the `client_of` an address.
    """

    def __init__(self) -> None:
        self.wrong = Tries(MOST_WRONG)
        self._there = Tries(MOST_RIGHT)
        self._in_all = Tries(MOST_OF_KEY)

    def begin_right(self, key_id: str, address: str, now_s: float) -> int:
        """Counts a login with a right key, as `Tries.begin`."""
        there = f"{key_id} {client_of(address)}"
        if wait_s := self._there.begin(there, now_s):
            return wait_s
        if wait_s := self._in_all.begin(key_id, now_s):
            self._there.take_back(there, now_s)
        return wait_s

    def take_back_right(self, key_id: str, address: str, began_s: float) -> None:
        """The login that began then does not count."""
        self._there.take_back(f"{key_id} {client_of(address)}", began_s)
        self._in_all.take_back(key_id, began_s)


_IPV6_NETWORK_BITS: Final = 64  # one client has them all


def client_of(address: str) -> str:
    """The client behind an address: of IPv6 its network."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))
    return str(parsed)
