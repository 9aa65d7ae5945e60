"""The whole check runs to its end over a false GPU, with a real controller, agent and database."""

import json
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support import gpu_check
from support.database.postgres import reachable_folder

pytestmark = [pytest.mark.cases, pytest.mark.timeout(600)]

LIMIT_S = 480
# How fast things are here depends on what else runs.
OF_TIME = {"the agent's cost", "sample with 1 process", "sample with 8 processes", "the idle one stops"}
ENDS = {"all instances are gone", "no engine is left", "no claim is left", "the ledger is in order"}


def findings(results: Path) -> dict[tuple[str, str], dict[str, Any]]:
    kept = json.loads((results / "results.json").read_text())
    return {(step["name"], one["name"]): one for step in kept["steps"] for one in step["findings"]}


@pytest.fixture
def work() -> Iterator[Path]:
    """A folder that the account of the database can enter."""
    with reachable_folder() as folder:
        yield folder


def test_all_of_it_but_cuda_is_tried_without_a_gpu(tmp_path: Path, work: Path) -> None:
    results = tmp_path / "results"
    began = time.monotonic()
    argv = [*gpu_check.argv(results, None, real=False), "--work", str(work)]
    done = subprocess.run(argv, env=gpu_check.env(), capture_output=True, text=True, check=False, timeout=LIMIT_S + 30)
    assert time.monotonic() - began < LIMIT_S
    found = findings(results)
    bad = {key: one for key, one in found.items() if one["status"] not in ("passed", "noted", "skipped")}
    assert not {name for _, name in bad} - OF_TIME, (bad, done.stdout, done.stderr)
    for name in ENDS:
        assert found["end", name]["status"] == "passed"
    skipped = {key: one["message"] for key, one in found.items() if one["status"] == "skipped"}
    assert {why for (_, name), why in skipped.items() if name != "PyTorch"} <= {
        "skipped: no CUDA", "skipped: nvcc is not on the search path",
    }  # fmt: skip
    assert found["out of memory", "out of memory on the GPU"]["status"] == "skipped"
    assert found["idle", "the busy neighbour stays"]["status"] == "passed"
    assert found["adoption", "adopted after kill -9"]["status"] == "passed"
    assert found["foreign process", "it is named"]["status"] == "passed"
    _left(results, work)


def _left(results: Path, work: Path) -> None:
    """Few files: readings, fixtures, logs. Nothing in the working folder, and no process."""
    names = {file.name for file in results.iterdir()}
    assert names == {
        "summary.txt", "results.json", "host.txt", "logs.tar.gz", "nvml-readings-idle.json", "false-nvml-idle.txt",
        "nvml-readings-busy.json", "false-nvml-busy.txt",
    }  # fmt: skip
    with tarfile.open(results / "logs.tar.gz") as packed:
        logs = {Path(one).name for one in packed.getnames()}
    assert {"controller.log", "agent.log", "nvml-samples.jsonl", "doctor.txt"} <= logs
    assert (results / "false-nvml-idle.txt").read_text().startswith("driver 580.95.05\ngpu GPU-")
    assert (results / "false-nvml-busy.txt").read_text().count("sm=5\n") == 8
    assert list(work.iterdir()) == []
    assert [one.info["cmdline"] for one in psutil.process_iter(["cmdline"]) if str(work) in str(one.info)] == []


def test_a_check_that_is_ended_leaves_what_it_knows_and_no_process(tmp_path: Path) -> None:
    results = tmp_path / "results"
    argv = [*gpu_check.argv(results, None, real=False), "--steps", "host,NVML fields,utilization"]
    process = subprocess.Popen(argv, env=gpu_check.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 120
        while not (results / "nvml-readings-idle.json").exists():
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)
        time.sleep(2)
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(60) != 0
    finally:
        process.kill()
        process.wait(10)
    assert ("NVML fields", "first reading") in findings(results)
    assert psutil.wait_procs(children, timeout=10)[1] == []
