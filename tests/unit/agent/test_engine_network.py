"""Engines share a network in which they do not reach one another, or they do not start."""

from collections.abc import Mapping
from typing import Any

import pytest

from agent.containers.docker_engine import DockerRefusalError
from agent.containers.runtime import engine_network

OWN = {"Id": "b", "Name": "bridge", "Driver": "bridge"}
OWNER = "a" * 32


class FakeEngine:
    """Keeps networks, as Docker does."""

    def __init__(self, *found: Mapping[str, Any], refuses: str = "", forgets: bool = False) -> None:
        self.found = list(found)
        self.refuses = refuses
        self.forgets = forgets

    async def networks(self) -> list[Mapping[str, Any]]:
        return self.found

    async def create_network(self, config: Mapping[str, Any]) -> None:
        if self.refuses:
            raise DockerRefusalError(500, self.refuses)
        if any(one["Name"] == config["Name"] for one in self.found):
            raise DockerRefusalError(409, "the name is taken")
        if not self.forgets:
            self.found.append({"Id": f"n{len(self.found)}", **config})


async def test_it_is_made_once() -> None:
    engine = FakeEngine(OWN)
    first = await engine_network(engine, OWNER)  # type: ignore[arg-type]
    assert (first.id, first.why) == ("n1", "")
    assert await engine_network(engine, OWNER) == first  # type: ignore[arg-type]


async def test_a_name_that_another_network_has_is_left_to_it() -> None:
    others = (
        {"Id": f"o{n}", "Name": f"gpuward-{OWNER[:12]}{end}", "Driver": "bridge"} for n, end in enumerate(("", "-2"))
    )
    engine = FakeEngine(OWN, *others)
    assert (await engine_network(engine, OWNER)).id == "n3"  # type: ignore[arg-type]
    assert engine.found[-1]["Name"].endswith("-3")


@pytest.mark.parametrize("engine", [FakeEngine(OWN, refuses="no address is left"), FakeEngine(OWN, forgets=True)])
async def test_a_docker_that_makes_none_opens_no_way_to_others(engine: FakeEngine) -> None:
    with pytest.raises(DockerRefusalError):
        await engine_network(engine, OWNER)  # type: ignore[arg-type]


async def test_without_bridges_the_hosts_network_is_used_and_said() -> None:
    found = await engine_network(FakeEngine({"Id": "h", "Name": "host", "Driver": "host"}), OWNER)  # type: ignore[arg-type]
    assert found.id is None
    assert "no bridge" in found.why
