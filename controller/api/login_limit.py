"""How many logins a minute: wrong keys of one address, and right ones of one key. Pure; times are arguments.

A try counts when it begins and is taken back when it was right, so that tries at the same time count too.

An address over its limit may still log in with a right key: behind a proxy that is not trusted all browsers are one
address, and one of them must not lock out the others. Beyond the limit a key is only compared with those in memory,
which costs no read of the database. That tells a guesser no more than any request with `Authorization: Bearer` does,
and a key has 256 random bits: it is not this limit that keeps it from being guessed. The limit keeps floods of wrong
keys from the database, and tells a person to look at the key again. Right logins write rows and events, so that each
key is limited, too.
"""

import ipaddress
import math
from collections import OrderedDict, deque
from typing import Final

MOST_WRONG: Final = 10
MOST_RIGHT: Final = 30
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
        right: logins by the key's id.
    """

    def __init__(self) -> None:
        self.wrong = Tries(MOST_WRONG)
        self.right = Tries(MOST_RIGHT)


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
