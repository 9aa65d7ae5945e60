"""Readers of untrusted bytes: all inputs of the corpus, and a search for others that our code's coverage guides.

The search always tries the same inputs, for about two seconds. With `FUZZ_SECONDS` it takes that long for each reader,
from any inputs. What reaches something new is kept in build/fuzz, and `make fuzz-corpus` adds it to the corpus.
An input that breaks a reader is there too, as TARGET-crash-...: the corpus takes it with the mend.
"""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from support.fuzz.targets import TARGETS

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
CORPUS: Final = HERE / "corpus"
KEPT: Final = ROOT / "build/fuzz"
SECONDS: Final = int(os.environ.get("FUZZ_SECONDS", "0"))
MOST_CORPUS_BYTES: Final = 200_000
QUICK_S: Final = 120  # at most, on a busy machine
FILES: Final = [file for target in TARGETS for file in sorted((CORPUS / target).iterdir())]
OPTIONS: Final = ("-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1")

pytestmark = pytest.mark.timeout(SECONDS + 300)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_the_corpus_breaks_nothing(file: Path) -> None:
    importlib.import_module(f"support.fuzz.{file.parent.name}").check(file.read_bytes())


def test_the_corpus_is_small() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
    assert sum(file.stat().st_size for file in FILES) < MOST_CORPUS_BYTES


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris has no wheel for this machine")
@pytest.mark.parametrize("target", TARGETS)
def test_no_input_is_found_that_breaks_a_reader(target: str, tmp_path: Path) -> None:
    folder = KEPT if SECONDS else tmp_path
    (folder / target).mkdir(parents=True, exist_ok=True)
    longest = TARGETS[target].longest
    limit = [f"-max_total_time={SECONDS}"] if SECONDS else ["-seed=1", f"-runs={TARGETS[target].quick_runs}"]
    options = [*OPTIONS, *limit, f"-max_len={longest}", f"-artifact_prefix={folder}/{target}-"]
    searched = subprocess.run(
        [sys.executable, HERE / "drive.py", target, *options, folder / target, CORPUS / target],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS + QUICK_S,
        check=False,
    )
    assert searched.returncode == 0, searched.stderr[-8000:]
    reached = int(re.findall(r" cov: (\d+) ", searched.stderr)[-1])
    inputs = int(re.findall(r"number_of_executed_units: (\d+)", searched.stderr)[-1])
    sys.stdout.write(f"{target}: {inputs} inputs, {reached} branches reached\n")
    assert inputs > 100
    assert reached > TARGETS[target].least_reached, "the search is not guided"
