"""The network of engines in containers: each reaches the world and the host's loopback reaches it; they not one another.

All agents of a host share it. It is found by its label; Docker removes no network in use, and a missing one is made
again at the next start. Pure.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

NETWORK: Final = "gpuward-engines"
NETWORK_LABEL: Final = "gpuward.network"
_LABELS: Final = {NETWORK_LABEL: "engines"}
_OPTIONS: Final = {"com.docker.network.bridge.enable_icc": "false"}
_OWN: Final = "bridge"  # of Docker itself; without it Docker has no bridges


def network_config() -> dict[str, Any]:
    """What Docker is asked to create."""
    return {
        "Name": NETWORK,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Labels": dict(_LABELS),
        "Options": dict(_OPTIONS),
    }


def engines_network(found: Iterable[Mapping[str, Any]]) -> str | None:
    """The id of the network of engines; None: there is none. One that separates no engines does not count."""
    ids = [
        str(one["Id"])
        for one in found
        if one.get("Driver") == "bridge"
        and _LABELS.items() <= (one.get("Labels") or {}).items()
        and _OPTIONS.items() <= (one.get("Options") or {}).items()
    ]
    return min(ids, default=None)  # two agents may have made one each at the same moment


def has_bridges(found: Iterable[Mapping[str, Any]]) -> bool:
    """Whether containers can have networks of their own."""
    return any(one.get("Name") == _OWN for one in found)
