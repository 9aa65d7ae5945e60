"""A gang of real vLLM: one instance on two workers, without Ray."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.deployed import Deployed, gpuward, listed, living, until
from engines.table import CONTEXT, VLLM, needs
from support.processes.up_process import Up

pytestmark = [pytest.mark.timeout(1200), *needs(VLLM)]


def test_a_killed_rank_brings_both_back(up: Up, models: Iterator[Path]) -> None:
    manifest = VLLM.manifest(VLLM.make_model(next(models)))
    # On the CPU the second rank needs a pass to warm up, and only a compiler brings one. This one does nothing more.
    args = {"max-model-len": CONTEXT, "compilation-config": {"backend": "eager"}}
    gang = Deployed(up, VLLM, {**manifest, "args": args, "parallel": {"pp": 2}, "resources": {"max_workers": 2}})
    gang.run()
    before = gang.processes()
    assert set(before) == {0, 1}
    assert sorted(gang.status()["workers"]) == ["gpu-1", "gpu-2"]
    assert gang.ask().model == "tiny"

    family = gang.family()
    before[1].kill()
    until(lambda: gang.status()["phase"] != "running", "its end is seen", 60)
    until(lambda: gang.status()["phase"] == "running", "it runs again", 400)
    until(gang.answers, "it answers again")
    after = gang.processes()
    assert set(after) == {0, 1}
    assert {one.pid for one in before.values()} & {one.pid for one in after.values()} == set()
    assert living(family) == []
    family = gang.family()

    gang.delete()
    assert living([*family, *up.engines()]) == []
    assert [gpu["claims"] for gpu in listed(up, "gpus")] == [[], []]
    gpuward(up, "audit")
