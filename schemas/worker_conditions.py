"""Types of workers' conditions that several modules use, and the statuses that need attention."""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:  # a call of the CLI must start without pydantic
    from schemas.api.envelopes import Condition

CONTAINERS: Final = "ContainersUsable"  # false on most hosts, which need no containers
DRAINED: Final = "Drained"  # false: its drain is not finished
GPUS_HEALTHY: Final = "GpusHealthy"  # false: a GPU is unhealthy
DISK_PRESSURE: Final = "DiskPressure"  # true: the disk is full, so nothing new is placed there


def is_trouble(condition: "Condition") -> bool:
    """Whether a condition needs attention: most types should be true, but some should be false."""
    return condition.status == ("true" if condition.type == DISK_PRESSURE else "false")
