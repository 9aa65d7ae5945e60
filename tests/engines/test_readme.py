"""The README's first real model, without a GPU: its commands as printed, with a running Gpuward."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.deployed import START_LIMIT, client_env, gpuward
from engines.table import TRANSFORMERS, needs
from support.pages import ROOT, fences
from support.processes.up_process import Up, clean_env

pytestmark = [pytest.mark.timeout(400), *needs(TRANSFORMERS)]
# The test's fixtures install the server, make the model, and start Gpuward.
DONE_BEFORE = ("make tiny-model", "PATH=$PATH:$PWD/.venv-engines/bin make run", ". ~/.local/share/")


def test_the_first_real_model_answers(up: Up, models: Iterator[Path], tmp_path: Path) -> None:
    (block,) = (fence for fence in fences(ROOT / "README.md", "sh") if DONE_BEFORE[0] in fence.text)
    lines = block.text.splitlines()
    left = [line for line in lines if not line.startswith(DONE_BEFORE)]
    assert len(lines) - len(left) == len(DONE_BEFORE)
    model = next(models)
    TRANSFORMERS.make_model(model)
    (tmp_path / ".venv").symlink_to(Path(sys.prefix), target_is_directory=True)
    script = (
        "\n".join(left)
        .replace("$PWD/build/tiny-model", str(model))
        .replace("--wait", f"--wait --timeout {START_LIMIT}")
    )
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=tmp_path, env=clean_env() | client_env(up), capture_output=True, text=True, timeout=390, check=False,
    )  # fmt: skip
    try:
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout[done.stdout.index('{"') :])
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["completion_tokens"] == 8
    finally:
        gpuward(up, "delete", "--wait", "first")
