"""What guarded writes share: a plan with the facts it was made from, and the count that tells a lost guard."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controller.domain.effects import DeploymentEffects, Restart
from controller.domain.instances import DeploymentFacts
from controller.store.core.errors import LostGuardError


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A plan with the facts it was made from, the start payloads of its restarts by instance, and names to be given."""

    facts: DeploymentFacts
    plan: DeploymentEffects
    payloads: Mapping[str, dict[str, Any]]
    names: tuple[str, ...] = ()  # of the instances that it creates


async def expect_rows(connection: Any, query: str, count: int, *args: Any) -> None:
    """Runs a write that returns its rows; raises LostGuardError where they are not as many as were meant."""
    rows = await connection.fetch(query, *args)
    if len(rows) != count:
        raise LostGuardError(query.split("\n", 1)[0].strip())


def worker_of(facts: DeploymentFacts, restart: Restart) -> str | None:
    """The worker on which a restart in place happens."""
    return next((i.host_of(0) for i in facts.instances if i.id == restart.instance), None)
