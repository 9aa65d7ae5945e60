"""Processes of every kind are killed and stopped at random, and a checker from outside finds nothing wrong.

Engines lock their GPUs and record each request, clients and an operator record what they saw. The checker knows these
records alone. FAULTS_SEED names the seed; the short form has one of its own, and the long one takes one at random.
FAULTS_MINUTES is the time of the long one.
"""

import ast
import asyncio
import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from controller.store.embedded.layout import Layout
from support.database.postgres import holding
from support.processes import external_checker
from support.processes.controllers import Controllers
from support.processes.external_checker import read, violations
from support.processes.random_faults import HOWS, KINDS, RandomFaults, plan
from support.processes.recorded import Client, Operator, Record
from support.standins import locking_engine

SEED_VARIABLE = "FAULTS_SEED"
LONG_S = 60 * float(os.environ.get("FAULTS_MINUTES") or 20)
AGENTS = ("h1", "h2", "h3")
CLIENTS = 6
ENV = {
    "GPUWARD_LEASE_TTL_S": "3",
    "GPUWARD_UNREACHABLE_AFTER_S": "7",
    "GPUWARD_LOST_AFTER_S": "20",
    "GPUWARD_RESTART_BACKOFF_S": "0.5",
}
SETTLED_S = 360.0  # what crashed again and again waits for minutes
STARTED_S = 90.0


def spec(history: Path, model: str, replicas: int, *flags: str) -> dict[str, Any]:
    """A deployment whose engines lock whole GPUs."""
    command = [sys.executable, locking_engine.__file__, str(history), model, "{port}", *flags]
    return {
        "engine": "custom",
        "command": command,
        "replicas": replicas,
        "resources": {"gpus": 1, "exclusive": True},
        "probe": {"path": "/"},
    }


@dataclass
class Site:
    """Two controllers with their gateways on a database of their own, three hosts of two GPUs, and three models."""

    cluster: Controllers
    history: Path
    faults: RandomFaults
    operator: Operator
    doors: dict[str, str]
    specs: dict[str, dict[str, Any]]
    record: Callable[[str], Record]

    async def all_run(self) -> None:
        """Waits until all replicas run, after whatever came before."""

        async def running() -> bool:
            found = [await self.operator.call("GET", f"/deployments/{name}") for name in self.specs]
            return all(one is not None and one["status"]["phase"] == "running" for one in found)

        async with asyncio.timeout(SETTLED_S):
            await self.operator.until(running)


@pytest.fixture
async def site(data_dir: Path) -> AsyncIterator[Site]:
    """Nothing but records is shared between the parts and the checker."""
    database, history = data_dir / "database", data_dir / "history"
    for folder in (database, history / "records", history / "locks"):
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    with ExitStack() as stack:

        def record(name: str) -> Record:
            made = Record(history / "records" / f"{name}.jsonl")
            stack.callback(made.close)
            return made

        holder = stack.enter_context(holding(database))
        (data_dir / "cluster").mkdir()
        cluster = Controllers(data_dir / "cluster", holder.dsn)
        try:
            for name in ("a", "b"):
                await cluster.start_named(name, **ENV)
            doors = {name: f"http://127.0.0.1:{cluster.port_of(name)}" for name in ("a", "b")}
            agents = {name: _agent(cluster, name, ",".join(doors.values())) for name in AGENTS}
            for start in agents.values():
                await start()
            specs = {
                "steady": spec(history, "steady", 3),
                "strict": spec(history, "strict", 1, "--strict"),
                "switched": spec(history, "switched", 1),
            }
            faults = RandomFaults(cluster, agents, holder, Layout(database).cluster, record("faults"), ENV)
            made = Site(cluster, history, faults, Operator(cluster, doors, record("operator")), doors, specs, record)
            for name, each in specs.items():
                await cluster.apply(name, **each)
            await made.all_run()
            yield made
        finally:
            await cluster.aclose()


def _agent(cluster: Controllers, name: str, url: str) -> Callable[[], Coroutine[Any, Any, None]]:
    async def start() -> None:
        await cluster.start_agent(name, gpus=2, url=url, ready=False)

    return start


def seed_of(default: int | None) -> int:
    """FAULTS_SEED, else the default, else one at random."""
    text = os.environ.get(SEED_VARIABLE)
    if text:
        return int(text)
    return random.SystemRandom().randrange(10**6) if default is None else default


@pytest.mark.parametrize(
    ("seconds", "every_s", "seed"),
    [
        pytest.param(30.0, 1.8, 1, marks=[pytest.mark.cases, pytest.mark.timeout(720)], id="short"),
        pytest.param(LONG_S, 8.0, None, marks=[pytest.mark.nightly, pytest.mark.timeout(LONG_S + 1200)], id="long"),
    ],
)
async def test_what_processes_recorded_agrees(site: Site, seconds: float, every_s: float, seed: int | None) -> None:
    seed = seed_of(seed)
    key = (await site.cluster.post("/keys", {"role": "inference", "name": secrets.token_hex(4)}))["key"]
    clients = [
        Client(f"c{n}", site.doors, key, sorted(site.specs), f"{seed} {n}", site.record(f"client-{n}"))
        for n in range(CLIENTS)
    ]
    until_s = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run(until_s))
        group.create_task(site.faults.run(plan(seed, seconds, every_s)))
        group.create_task(site.operator.run(until_s, "switched", "steady", site.specs["steady"], 2 * every_s))
    records = read(site.history / "records")
    whole = sum(client.whole for client in clients)
    ends = sum(one["what"] == "ended" for one in records)
    starts = sum(one["what"] == "held" for one in records)
    summary = (
        f"seed {seed}: {ends} requests, {whole} answered, {starts} starts of engines, {site.operator.rounds} stops,"
        f" {dict(site.faults.done)}"
    )
    print(summary)  # noqa: T201 - pytest shows it where the test fails, and with -s
    assert violations(records) == [], summary
    assert whole >= seconds, summary
    assert site.operator.rounds, summary
    assert len({name.split()[1] for name in site.faults.done}) == len(KINDS), summary
    await site.all_run()
    assert violations(read(site.history / "records")) == [], summary


def test_a_seed_gives_one_plan_which_meets_every_kind_of_process_in_each_way() -> None:
    faults = plan(7, 40.0, 2.0)
    assert faults == plan(7, 40.0, 2.0) != plan(8, 40.0, 2.0)
    assert {(fault.kind, fault.how) for fault in faults} >= {(kind, how) for kind in KINDS for how in HOWS}
    assert sum(fault.after_s for fault in faults) <= 40


# The checker itself: a history that is right, and one change to it for each thing that may be wrong.


def at(t: float, what: str, **more: Any) -> dict[str, Any]:
    return {"t": t, "what": what} | more


def taken(t: float, name: str, engine: str = "e1", model: str = "m", *, usage: bool = False) -> dict[str, Any]:
    return at(t, "taken", id=name, engine=engine, model=model, usage=usage)


def asked(t: float, name: str, model: str = "m") -> dict[str, Any]:
    return at(t, "asked", id=name, model=model, door="door-a")


def ended(t: float, name: str, end: str = "whole", status: int = 200, answer: str = "") -> dict[str, Any]:
    return at(t, "ended", id=name, end=end, status=status, answer=answer or f"m {name}")


def refused(t: float, name: str, status: int, engine: str = "e1") -> dict[str, Any]:
    return at(t, "refused", id=name, engine=engine, status=status)


def held(t: float, engine: str, gpus: str = "g1", model: str = "m", start: str = "") -> dict[str, Any]:
    return at(t, "held", engine=engine, gpus=gpus.split(), model=model, start=start or engine)


def finished(t: float, name: str, engine: str = "e1") -> dict[str, Any]:
    return at(t, "finished", id=name, engine=engine)


def beat(t: float, engine: str) -> dict[str, Any]:
    return at(t, "beat", engine=engine)


FAULT = at(30, "fault", door="door-a", until=35)
RIGHT = [
    *(held(1, "e1"), beat(50, "e1"), held(51, "e2"), beat(60, "e2"), held(1, "e3", "g2 g3"), beat(60, "e3")),
    *(asked(2, "whole"), taken(3, "whole"), finished(4, "whole"), ended(5, "whole")),
    *(asked(2, "cut"), taken(3, "cut"), ended(5, "cut", "cut")),
    *(asked(2, "left"), taken(3, "left"), ended(5, "left", "left")),
    *(asked(2, "never"), ended(5, "never", "error", 503)),
    # Refused by one engine with 503, and run by another.
    *(asked(10, "busy"), taken(11, "busy"), refused(12, "busy", 503)),
    *(taken(13, "busy", "e3"), finished(14, "busy", "e3"), ended(15, "busy")),
    # The same engine once more, without the field that the gateway had added.
    *(asked(20, "usage"), taken(21, "usage", usage=True), refused(22, "usage", 400)),
    *(taken(23, "usage"), finished(24, "usage"), ended(25, "usage")),
    *(FAULT, asked(31, "lost"), taken(32, "lost"), ended(33, "lost", "lost", 0)),
    *(at(70, "stopped", model="m"), asked(71, "no"), ended(72, "no", "error", 503), at(80, "started", model="m")),
    *(held(81, "e4"), asked(81, "late"), taken(82, "late", "e4"), finished(83, "late", "e4"), ended(84, "late")),
]


@pytest.mark.parametrize(
    ("without", "added", "found"),
    [
        ([], [], ""),
        ([], [held(40, "x"), beat(41, "x")], "GPU g1 had two engines"),
        ([], [held(40, "x", "g9 g2")], "GPU g2 had two engines"),
        ([], [at(40, "conflict", engine="x", gpu="g1", model="m")], "was locked by another engine"),
        ([], [held(65, "x", "g1", start="e1")], "e1 was started 2 times"),
        ([], [taken(4, "whole", "e3")], "whole ran 2 times"),
        ([], [taken(4, "cut")], "cut ran 2 times"),
        ([], [taken(14, "busy")], ""),  # the same engine's refusal
        ([], [taken(14, "busy", "e9")], "busy ran 2 times"),
        ([], [taken(26, "usage")], "usage ran 2 times"),
        ([], [taken(22.5, "usage", usage=True)], "usage was sent twice with stream_options"),
        ([taken(23, "usage")], [taken(23, "usage", "e3")], "usage was sent again to another engine"),
        ([ended(5, "cut", "cut")], [], "cut had 0 ends"),
        ([], [ended(6, "cut", "error", 502)], "cut had 2 ends"),
        ([ended(5, "never", "error", 503)], [], "never had 0 ends"),
        ([asked(2, "whole")], [], "whole was sent by no client"),
        ([], [taken(40, "ghost")], "ghost was sent by no client"),
        ([ended(5, "cut", "cut")], [ended(5, "cut", "odd")], "no proper end"),
        ([ended(5, "cut", "cut")], [ended(5, "cut", "lost", 0)], "no proper end"),
        ([FAULT], [], "no proper end"),
        ([FAULT], [FAULT | {"door": "door-b"}], "no proper end"),
        ([FAULT], [FAULT | {"until": 30.5}], "no proper end"),
        ([], [taken(4, "never")], "refused, and an engine ran it"),
        ([taken(3, "whole"), finished(4, "whole")], [], "did not run once"),
        ([finished(4, "whole")], [], "did not run once"),
        ([taken(3, "whole")], [taken(6, "whole")], "did not run once"),
        ([ended(5, "whole")], [ended(5, "whole", answer="m cut")], "another request's answer"),
        ([taken(3, "whole")], [taken(3, "whole", model="other")], "another request's answer"),
        ([], [taken(71.5, "no", "e3")], "a stopped model answered"),
        ([ended(72, "no", "error", 503)], [ended(72, "no")], "a stopped model answered"),
        ([], [beat(70.5, "e3")], "an engine of a stopped model"),
        ([], [held(75, "x", "g7")], "an engine of a stopped model"),
        ([], [held(75, "x", "g7", "other")], ""),
        ([at(80, "started", model="m")], [], "a stopped model"),
    ],
)
def test_the_checker_finds_what_is_wrong(
    tmp_path: Path, without: list[dict[str, Any]], added: list[dict[str, Any]], found: str
) -> None:
    assert all(record in RIGHT for record in without)
    history = [record for record in RIGHT if record not in without] + added
    random.Random(1).shuffle(history)  # noqa: S311 - files come in any order
    lines = [json.dumps(record) + "\n" for record in history]
    (tmp_path / "one.jsonl").write_text("".join(lines[::2]))
    (tmp_path / "two.jsonl").write_text("".join(lines[1::2]) + '{"t": 1, "wh')  # its process was killed
    checked = subprocess.run(
        [sys.executable, "-I", external_checker.__file__, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == bool(found), checked.stdout + checked.stderr
    assert found in checked.stdout
    assert not checked.stderr


@pytest.mark.parametrize("module", [external_checker, locking_engine])
def test_checker_and_engine_import_nothing_of_the_product(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
