"""The locks of many deployments' steps cost in line with their number."""

import asyncio
from collections.abc import Callable
from typing import Any

from controller.domain.effects import DeploymentEffects, Release
from controller.store.core.guards import DeploymentStep
from controller.store.deployments import effects
from support.builders.facts import deployment, instance
from support.growth import assert_in_line


class Connection:
    """Notes how many rows each statement locks."""

    def __init__(self) -> None:
        self.locked: list[int] = []

    async def execute(self, _: str, rows: list[Any]) -> None:
        self.locked.append(len(rows))


def steps(number: int) -> list[DeploymentStep]:
    """Each releases the claims of the only replica of its deployment."""
    return [
        DeploymentStep(deployment(instance(f"i{n}", "running")), DeploymentEffects(releases=[Release(f"i{n}", 1)]), {})
        for n in range(number)
    ]


def test_rows_are_locked_once_for_all_steps() -> None:
    def of(number: int) -> Callable[[], None]:
        made, connection = steps(number), Connection()

        def lock() -> None:
            asyncio.run(effects._lock(connection, made))
            assert connection.locked[0] == number

        return lock

    assert_in_line(of, 1500)
