"""Finds the network of engines on this host, and makes it where it is missing."""

from dataclasses import dataclass
from typing import Final

from agent.containers.docker_engine import DockerEngine, DockerRefusalError
from agent.decide.container_network import engines_network, has_bridges, network_config

_NO_BRIDGE: Final = "Docker has no bridge network here"
_INSTEAD: Final = "the container uses the host's, where it listens on 127.0.0.1"


@dataclass(frozen=True, slots=True)
class EngineNetwork:
    """Where a container listens.

    Attributes:
        id: of the network; None: it uses the host's.
        why: it does that; empty with an id.
    """

    id: str | None
    why: str = ""


async def engine_network(engine: DockerEngine, owner: str) -> EngineNetwork:
    """The network for a container. Docker's own bridge is none: there engines would reach one another.

    The caller asks for one at a time.

    Raises:
        DockerAwayError, DockerRefusalError: what networks there are is unknown, or none can be made. On the host's
            network engines would reach one another, so it does not stand in.
    """
    found = await engine.networks()
    if not has_bridges(found):
        return EngineNetwork(None, f"{_NO_BRIDGE}: {_INSTEAD}")
    known = engines_network(found)
    if known is None:
        taken = {str(one.get("Name")) for one in found}
        await engine.create_network(network_config(owner, taken))
        known = engines_network(await engine.networks())
    if known is None:
        raise DockerRefusalError(0, "it has made no network for engines")
    return EngineNetwork(known)
