"""The network of engines in containers. The host's loopback reaches each of them; they do not reach one another.

All agents of a host share it. It is found by its label; Docker removes no network in use, and a missing one is made
again at the next start. Its name is of the agent that made it, since Docker lets two have the same name, and then
starts nothing in either. Two agents may make one each at the same moment. That does no harm: networks do not reach one
another, either. Pure.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import Any, Final

NETWORK_LABEL: Final = "gpuward.network"
_LABELS: Final = {NETWORK_LABEL: "engines"}
_OPTIONS: Final = {"com.docker.network.bridge.enable_icc": "false"}
_OWN: Final = "bridge"  # of Docker itself; without it Docker has no bridges


def network_config(owner: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """What Docker is asked to create for an agent with this id. `taken`: names of other networks."""
    name = f"gpuward-{owner[:12]}"
    free = next(one for n in count(1) if (one := name if n == 1 else f"{name}-{n}") not in taken)
    return {
        "Name": free,
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
    return min(ids, default=None)


def has_bridges(found: Iterable[Mapping[str, Any]]) -> bool:
    """Whether containers can have networks of their own."""
    return any(one.get("Name") == _OWN for one in found)
