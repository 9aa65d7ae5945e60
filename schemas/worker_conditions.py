"""Types of workers' conditions that several parts tell apart by name, and which statuses are trouble."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # a call of the CLI must start without pydantic
    from schemas.api.envelopes import Condition

CONTAINERS: Final = "ContainersUsable"  # false on most hosts, which need no containers
DRAINED: Final = "Drained"  # false: what a drained worker waits for
GPUS_HEALTHY: Final = "GpusHealthy"  # false: a GPU is unhealthy, which has a reason of its own
DISK_PRESSURE: Final = "DiskPressure"  # true: the disk is full, so nothing new is placed there


def is_trouble(condition: "Condition") -> bool:
    """Whether it needs attention: most types are of what should hold, and some of what should not."""
    return condition.status == ("true" if condition.type == DISK_PRESSURE else "false")
