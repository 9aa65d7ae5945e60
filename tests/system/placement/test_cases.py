"""The placement cases: hosts and models of real sizes in, GPUs or reasons out, through the API.

Each is planned, planned again with manual selection, and applied, with the same result. Other cases:

C05, C15            `test_folders.py`, whose models are folders
C29, C32, C36, C40  `test_states.py`, with running instances or hosts that are not ready
C41                 `test_platforms.py`
N1, N2, N3, N4, N6, N7, N8, N9  named where they are tested: `grep -rn 'N[1-9]:' tests`
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from support.processes.cluster import Json
from support.processes.placement_site import Site, gpus_of
from support.processes.placement_tables import args_of, need_mib

pytestmark = [pytest.mark.cases, pytest.mark.asyncio(loop_scope="session")]
H80 = ("h80-1", "h80-2", "h80-3", "h80-4")


@dataclass(frozen=True)
class Case:
    """A case: `where` it is placed, by host and index, or why not (`refused`)."""

    hosts: tuple[str, ...]
    model: str
    where: dict[str, list[int]] = field(default_factory=dict)
    refused: frozenset[str] = frozenset()
    resources: Json = field(default_factory=dict)
    parallel: Json = field(default_factory=dict)
    select: dict[str, list[int]] = field(default_factory=dict)
    leader: str | None = None
    need_per_gpu: str | None = None

    def manifest(self, name: str = "case", **placement: Any) -> Json:
        placement = ({"gpus": by_index(self.select)} if self.select else {}) | placement
        args = args_of(self.model, need_per_gpu=self.need_per_gpu)
        return {
            "name": name, "args": args, "resources": self.resources, "parallel": self.parallel, "placement": placement,
        }  # fmt: skip


def by_index(where: dict[str, list[int]]) -> list[str]:
    return [f"{name}:{index}" for name, indices in where.items() for index in indices]


def why(*reasons: str) -> frozenset[str]:
    return frozenset(reasons)


TWO = {"max_workers": 2}
CASES = {
    "C01": Case(("w24a",), "q06b", {"w24a": [0]}),
    "C02": Case(("w24a",), "q32b", refused=why("need_gt_capacity")),
    "C06": Case(("w24a",), "q06b", refused=why("host_memory"), resources={"host_memory": "100GiB"}),
    "C08": Case(("w16x2",), "q8b", {"w16x2": [0, 1]}),
    "C09-heads": Case(("w16x4",), "s22h25", refused=why("heads_indivisible")),
    "C09-vocabulary": Case(("w16x4",), "s22v", refused=why("vocab_indivisible", "heads_indivisible")),
    "C09-fits": Case(("w16x4",), "s40h28", {"w16x4": [0, 1, 2, 3]}),
    "C11": Case(("h141",), "r1", {"h141": list(range(8))}),
    "C13": Case(("w16x2",), "s20g", {"w16x2": [0, 1]}, resources={"gpu_memory": "all"}),
    "C14-one": Case(("w16x4",), "q32b", refused=why("need_gt_capacity")),
    "C14-two": Case(("w16x2", "w16x2b"), "q32b", refused=why("need_gt_capacity"), resources=TWO),
    "C16": Case(("w24a", "w24b", *H80), "r1", {"h80-1": list(range(8)), "h80-2": list(range(8))}, resources=TWO),
    "C18": Case(("w16x2", "w16x2b"), "q7b", {"w16x2": [0, 1], "w16x2b": [0, 1]}, resources=TWO, parallel={"tp": 4}),
    "C20-two": Case(
        H80[:2], "r1", {name: list(range(8)) for name in H80[:2]}, resources=TWO, parallel={"tp": 8, "dp": 2},
        need_per_gpu="60GiB",
    ),
    "C20-three": Case(
        H80[:3], "r1", {name: list(range(8)) for name in H80[:3]}, resources={"max_workers": 3},
        parallel={"tp": 8, "dp": 3}, need_per_gpu="60GiB",
    ),
    "C21": Case(("w24a", "w24b"), "q14b", {"w24a": [0], "w24b": [0]}, resources=TWO),
    "C22": Case(
        ("w24a", "w24b"), "q7b", {"w24a": [0], "w24b": [0]}, resources={"gpus": 2, **TWO},
        select={"w24a": [0], "w24b": [0]},
    ),
    "C24": Case(
        ("a80-1", "a80-2", "a80-3"), "q7b", {"a80-1": [0, 1], "a80-2": [0], "a80-3": [0]},
        resources={"gpus": 4, "max_workers": 3}, parallel={"pp": 4},
        select={"a80-1": [0, 1], "a80-2": [0], "a80-3": [0]}, leader="a80-1",
    ),
    "C27": Case(
        ("w16x4",), "q32b", refused=why("need_gt_capacity"), resources={"gpus": 2}, select={"w16x4": [0, 1]}
    ),
    "C28-heads": Case(("w16x4",), "q7b", refused=why("heads_indivisible"), parallel={"tp": 3}),
}  # fmt: skip


@pytest.mark.parametrize("id_", CASES)
async def test_case(site: Site, id_: str) -> None:
    case = CASES[id_]
    await site.hosts(*case.hosts)
    (planned,) = await site.plan(case.manifest())
    agrees(case, planned)
    by_hand = {} if case.select else {"gpus": by_index(case.where)} if case.where else {"workers": list(case.hosts)}
    (chosen,) = await site.plan(case.manifest(**by_hand))
    agrees(case, chosen)
    applied = (await site.applied(case.manifest()))["status"]
    if case.where:
        assert sorted(applied["gpus"]) == sorted(gpus_of(case.where))
        assert sorted(applied["workers"]) == sorted(case.where)
        assert case.leader in (None, applied["worker"])
    else:
        assert applied["explain"]["rejected"].keys() == case.refused
        assert applied["reason"] in case.refused


def agrees(case: Case, item: Json) -> None:
    """Checks that the plan is the one that the case expects."""
    if case.where:
        assert item["fits"], item["explain"]
        assert sorted(item["gpus"]) == sorted(gpus_of(case.where))
        assert sorted(item["workers"]) == sorted(case.where)
        assert item["worker"] == item["workers"][0]
        assert case.leader in (None, item["worker"])
    else:
        assert not item["fits"]
        assert item["explain"]["rejected"].keys() == case.refused


async def test_c01_claims_about_what_it_needs(site: Site) -> None:
    await site.hosts("w24a")
    applied = await site.applied(CASES["C01"].manifest())
    gpu = next(c for c in applied["status"]["claims"] if c["kind"] == "gpu")
    assert (gpu["memory_mib"], gpu["exclusive"]) == (need_mib("q06b"), False)
    (whole,) = await site.plan({**CASES["C01"].manifest("all"), "resources": {"gpu_memory": "all"}})
    assert whole["explain"]["rejected"] == {"exclusive_conflict": 1}, "it is all of it where that is asked"


async def test_c02_nearest_miss_in_figures(site: Site) -> None:
    await site.hosts("w24a")
    (item,) = await site.plan(CASES["C02"].manifest())
    nearest = item["explain"]["nearest"]
    assert (nearest["worker"], nearest["free_gib"], nearest["need_gib"]) == ("w24a", 24.23, 75.23)


async def test_c09_lists_what_was_tried(site: Site) -> None:
    await site.hosts("w16x4")
    (item,) = await site.plan(CASES["C09-heads"].manifest())
    tried = {one["tp"]: one["reason"] for one in item["explain"]["tried"]}
    assert {tp: tried[tp] for tp in (2, 3, 4)} == dict.fromkeys((2, 3, 4), "heads_indivisible")


async def test_c28_numbers_that_do_not_match(site: Site) -> None:
    await site.hosts("w16x4")
    case = Case(("w16x4",), "q8b", resources={"gpus": 3}, parallel={"tp": 4}, select={"w16x4": [0, 1, 2]})
    wanted = {"engine": "simulated", "kind": "Deployment", **case.manifest()}
    del wanted["name"], wanted["kind"]
    status, answer = await site.cluster.call("PUT", "/deployments/case", wanted)
    assert status == 400
    (problem,) = answer["error"]["details"]["problems"]
    assert "count_mismatch" in problem["message"]
    assert {"4", "3"} <= set(problem["message"].replace(",", " ").replace(":", " ").split())
    del wanted["resources"]
    status, answer = await site.cluster.call("PUT", "/deployments/case", wanted)
    (problem,) = answer["error"]["details"]["problems"]
    assert "count_mismatch" in problem["message"], "as many are named as have to be"
