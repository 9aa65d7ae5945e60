"""The secrets that the agent's proxy accepts: the present, the next, and for a day the previous. Pure.

The controller issues the next secret with the next credential, and gateways use it once the agent has connected with
that credential. A gateway that cannot reach the database uses the previous secret.
"""

import hmac
from types import MappingProxyType
from typing import Any, Final

from agent.state.host_state import HostState

PREVIOUS_KEPT_S: Final = 86_400.0
NO_PROXY_SECRETS: Final = MappingProxyType(
    {"proxy_secret": None, "next_proxy_secret": None, "previous_proxy_secret": None}
)


def used_from_now_on(state: HostState, secret: str, now_s: float) -> dict[str, Any]:
    """Changes of the state once the controller reports that this secret is in use. `now_s` is Unix time."""
    if secret == state.proxy_secret:
        return {}
    changes: dict[str, Any] = {"proxy_secret": secret, "next_proxy_secret": None}
    if state.proxy_secret is not None:
        changes |= {"previous_proxy_secret": state.proxy_secret, "previous_proxy_until_s": now_s + PREVIOUS_KEPT_S}
    return changes


def is_other_secret(state: HostState, given: bytes, now_s: float) -> bool:
    """Whether this `Authorization` has the next or the previous secret."""
    # The upper bound holds also after a jump of the clock.
    kept = 0 < state.previous_proxy_until_s - now_s <= PREVIOUS_KEPT_S
    others = (state.next_proxy_secret, state.previous_proxy_secret if kept else None)
    return any(hmac.compare_digest(given, b"Bearer " + other.encode()) for other in others if other is not None)
