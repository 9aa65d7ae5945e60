"""How many wrong keys one address may try. Pure; times are arguments."""

import ipaddress
import math
from collections import OrderedDict, deque
from typing import Final

MOST_WRONG: Final = 10
WITHIN_S: Final = 60.0
MAX_ADDRESSES: Final = 4096  # beyond it the address that tried longest ago is forgotten
_IPV6_NETWORK_BITS: Final = 64  # one client has them all


class LoginLimit:
    """Wrong tries by address."""

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str, now_s: float) -> int:
        """Whole seconds until this address may try again; 0: now."""
        tries = self._wrong.get(_client(address))
        if tries is None:
            return 0
        while tries and now_s - tries[0] >= WITHIN_S:
            tries.popleft()
        return math.ceil(tries[0] + WITHIN_S - now_s) if len(tries) >= MOST_WRONG else 0

    def note_wrong(self, address: str, now_s: float) -> None:
        """Counts a wrong try."""
        client = _client(address)
        self._wrong.setdefault(client, deque(maxlen=MOST_WRONG)).append(now_s)
        self._wrong.move_to_end(client)
        if len(self._wrong) > MAX_ADDRESSES:
            self._wrong.popitem(last=False)

    def __len__(self) -> int:
        return len(self._wrong)


def _client(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None:
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))
    return str(parsed)
