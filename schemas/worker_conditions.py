"""Types of workers' conditions that several parts tell apart by name."""

from typing import Final

CONTAINERS: Final = "ContainersUsable"  # false on most hosts, which need no containers
DRAINED: Final = "Drained"  # false: what a drained worker waits for
GPUS_HEALTHY: Final = "GpusHealthy"  # false: a GPU is unhealthy, which has a reason of its own
