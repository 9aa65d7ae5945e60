"""The random models of the check for real GPUs, behind the real `transformers serve`, over a false NVML."""

import json
import subprocess
from pathlib import Path

import pytest

from engines.table import TRANSFORMERS, needs
from support import gpu_check
from support.database.postgres import reachable_folder

pytestmark = [pytest.mark.timeout(520), *needs(TRANSFORMERS)]


def test_its_models_are_loaded_and_answer(tmp_path: Path) -> None:
    (programs := tmp_path / "programs").mkdir()
    with reachable_folder() as work:
        argv = [*gpu_check.argv(tmp_path / "results", programs, real=False), "--work", str(work)]
        argv += ["--steps", "host,NVML fields,start,serving,end"]
        done = subprocess.run(argv, env=gpu_check.env(), capture_output=True, text=True, check=False, timeout=500)
    kept = json.loads((tmp_path / "results" / "results.json").read_text())
    serving = next(step for step in kept["steps"] if step["name"] == "serving")
    found = {one["name"]: one["status"] for one in serving["findings"]}
    for name in ("m01", "m05", "m3"):
        assert (found[f"{name} runs"], found[f"{name} answers"]) == ("passed", "passed"), done.stdout + done.stderr
    assert found["two shared claims"] == "passed"
