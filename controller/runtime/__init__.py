"""Queue, loop, computations, child processes, change feed, lease, clock. Knows no object kind."""
