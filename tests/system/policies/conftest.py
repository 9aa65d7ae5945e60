"""Clusters whose agents sample every two seconds, so that the shortest window there is holds enough."""

import pytest

from support.processes.cluster import Cluster
from support.processes.policies import PolicyWatch


@pytest.fixture
def watch(cluster: Cluster) -> PolicyWatch:
    """The policies of the test's own cluster."""
    return PolicyWatch(cluster)
