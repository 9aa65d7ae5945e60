"""What the ledger machine draws from, what must happen in a run, and the database that the examples share."""

import asyncio
import itertools
import uuid
from collections import Counter

import pytest
from hypothesis import strategies as st

from controller.store.core.migrate import migrate
from controller.store.deployments import effects as instance_writes
from machine.faults import Strike, StruckDatabase
from support.database.postgres import PostgresServer, create_database, drop_database

NAMES = st.sampled_from(["d0", "d1", "d2", "gang"])
HOSTS = st.integers(0, 2)
CONTROLLERS = st.integers(0, 1)
PICKS = st.integers(0, 63)
PARTS = st.sampled_from(
    ["step_instances", "step_placement", "step_workers", "step_relocations", "step_scaling", "step"]
)
STRIKES = st.builds(
    Strike, at=st.integers(1, 16), when=st.sampled_from(["before", "after"]), how=st.sampled_from(["drop", "cancel"])
)
ACTS = st.one_of(PARTS, PARTS, st.sampled_from(["take_over", "delete", "stop", "cordon", "write", "deliver", "hello"]))
LINES = st.sampled_from(["good", "good", "good", "repeats", "swaps", "slow", "breaks", "dead"])
HUB_ACTS = st.sampled_from(["write", "deliver"])
SPECS = st.fixed_dictionaries(
    {
        "replicas": st.integers(0, 3),
        "restart": st.sampled_from(["always", "always", "on_failure", "never"]),
        "priority": st.sampled_from([100, 200]),
        "preempt": st.sampled_from([False, False, True]),
        "stop_on_disconnect_after": st.sampled_from(["none", "none", 60]),
        "resources": st.fixed_dictionaries(
            {
                "gpus": st.sampled_from([1, 1, 2]),
                "gpu_memory": st.sampled_from(["auto", "10GiB", "30GiB"]),
                "max_workers": st.sampled_from([1, 1, 2]),
            }
        ),
    }
)
RANGES = st.sampled_from([{"min": 0, "max": 1}, {"min": 0, "max": 2}, {"min": 1, "max": 3}])
ROLLING = st.fixed_dictionaries(
    {
        "update": st.just("rolling"),
        "rollout": st.builds(
            lambda bounds, canary, abort: {
                "ready_for": 0, "surge": bounds[0], "unavailable": bounds[1], "canary": canary, "abort": abort
            },
            st.sampled_from([(1, 0), (0, 1), (1, 1), (2, 0)]),
            st.sampled_from([None, None, {"weight": 30, "for": 20}]),
            st.sampled_from([None, {}]),
        ),
        "replicas": st.one_of(st.integers(1, 3), RANGES),
        "scaling": st.just({"target": 1, "window": 1, "down_window": 5, "idle_after": 10}),
        "env": st.builds(lambda version: {"VERSION": str(version)}, st.integers(0, 2)),
        "priority": st.sampled_from([100, 200]),
        "preempt": st.sampled_from([False, False, True]),
        "start_timeout": st.just(20),
        "resources": st.sampled_from([{"gpus": 1}, {"gpus": 1}, {"gpus": 1, "gpu_memory": "10GiB"},
                                      {"gpus": 3, "gpu_memory": "10GiB", "max_workers": 2}]),
    }
)  # fmt: skip
# Each must happen somewhere in a whole run, else the run proves nothing about it.
MUST_HAPPEN = (
    "refusals", "crashes", "commits without an answer", "takeovers", "takeovers in the middle of a step",
    "stale sessions refused", "stale terms stepped", "stale terms refused", "messages repeated", "messages lost",
    "messages late", "messages reordered", "commands replayed", "old terms refused", "late hellos", "gangs placed",
    "hosts rebooted", "agents restarted", "workers deleted", "controllers killed", "examples settled",
    "relocations requested", "relocations moved", "relocations abandoned",
    "rollout started", "rollout complete", "rollout aborted", "rollout failed", "rollout paused", "rollout resumed",
    "rollout undone", "woken", "asleep",
)  # fmt: skip


class Bench:
    """What all examples share: a loop, a database and the tally."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.loop = asyncio.new_event_loop()
        self.tally: Counter[str] = Counter()
        self._dsn = self.loop.run_until_complete(create_database(server))
        self.database = self.loop.run_until_complete(StruckDatabase.begin(self._dsn, self.tally))
        self.loop.run_until_complete(migrate(self.database))
        self._patch = pytest.MonkeyPatch()

    def reset_names(self) -> None:
        """Counts ids instead of drawing them, so that rows are in the same order when an example is run again."""
        numbers = itertools.count(1)
        self._patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers)))
        self._patch.setattr(instance_writes, "new_instance_id", lambda name: f"{name}-{next(numbers):06}")

    def report(self) -> str:
        """What happened in the run, and how often."""
        return "\nthe ledger machine met:\n" + "".join(f"{n:8} {what}\n" for what, n in sorted(self.tally.items()))

    def close(self) -> None:
        self._patch.undo()
        self.loop.run_until_complete(self.database.close())
        self.loop.run_until_complete(drop_database(self._server, self._dsn))
        self.loop.close()
