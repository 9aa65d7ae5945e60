"""Types of workers' conditions that several parts tell apart by name."""

from typing import Final

CONTAINERS: Final = "ContainersUsable"  # false on most hosts, which need no containers
