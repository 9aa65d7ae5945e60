"""Deployments come, change and go by the thousand, and no daemon keeps what has gone: its memory does not grow.

The long form takes ten minutes or more. The short one keeps it working.
"""

from dataclasses import dataclass

import pytest

from support.processes.cluster import Cluster
from support.processes.many_changes import ManyChanges, pss_kib
from support.processes.memory_watch import growth


@dataclass(frozen=True)
class Form:
    """How many changes, after how many of them memory counts, and how often it is read."""

    first: int
    last: int
    every: int


SHORT = Form(150, 330, 30)
LONG = Form(500, 3500, 100)
# What each may grow by in either form: caches with a bound still fill. The controller's connections fill theirs of
# prepared statements as a burst of work opens them.
MOST_MIB = {"gateway": 1.0, "controller": 5.0}
MOST_OF_AN_AGENT_MIB = 4.5  # Python takes memory by the MiB
MOST_WHILE_SHORT_MIB = 6.0


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(SHORT, marks=[pytest.mark.cases, pytest.mark.timeout(480)], id="short"),
        pytest.param(LONG, marks=[pytest.mark.nightly, pytest.mark.timeout(7200)], id="long"),
    ],
)
async def test_memory_does_not_grow_with_changes(cluster: Cluster, form: Form) -> None:
    changes = ManyChanges(cluster)
    await changes.start()
    await changes.run(form.first)
    pids = changes.pids()
    seen: dict[str, list[float]] = {name: [] for name in pids}
    for until in range(form.first, form.last + 1, form.every):
        await changes.run(until)
        for name, kib in pss_kib(pids).items():
            seen[name].append(kib / 1024)
    grown = {name: round(growth(values), 2) for name, values in seen.items()}
    summary = f"{changes.changes} changes, growth in MiB: {grown}, last: { {name: v[-1] for name, v in seen.items()} }"
    print(summary)  # noqa: T201 - pytest shows it where the test fails, and with -s
    allowed = {name: MOST_MIB.get(name, MOST_OF_AN_AGENT_MIB) for name in grown}
    if form is SHORT:
        allowed = dict.fromkeys(grown, MOST_WHILE_SHORT_MIB)
    assert {name: mib for name, mib in grown.items() if mib > allowed[name]} == {}, summary
    assert changes.pids() == pids, "a daemon was started again"
    await cluster.audit()
