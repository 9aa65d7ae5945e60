"""The commands of the pages that a new user follows, run as they are printed, against a real `gpuward up`.

Only the environment is replaced: the folder where they are typed holds a link `.venv`, and the home folder is the
test's own. Blocks with a comment `<!-- not run: REASON -->` are left out: those that start Gpuward in another way, and
those that need Docker, PostgreSQL, a second host or a real model. Compose is tested in tests/system/test_compose.py.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.database.postgres import reachable_folder
from support.pages import DOCS, ROOT, Fence, fences
from support.processes.up_process import Up, clean_env

TUTORIALS = (
    pytest.param(DOCS / "getting-started.md", id="getting-started", marks=pytest.mark.cases),
    pytest.param(ROOT / "README.md", id="README"),
)
BLOCK_LIMIT_S = 100


@pytest.fixture(scope="module")
def up() -> Iterator[Up]:
    """What `make run` starts, on simulated hosts and on a free port."""
    with reachable_folder() as home:
        folder = home / ".local" / "share" / "gpuward"
        folder.mkdir(parents=True)
        for part in folder.relative_to(home).parents:
            (home / part).chmod(0o711)
        with Up(folder, "--example", "--agents", "2", "--port", "0") as running:
            running.wait_until_ready()
            yield running
            running.stop()


def environment(up: Up) -> dict[str, str]:
    """That of a user whose default data folder is the running Gpuward's."""
    home = up.data_dir.parents[2]
    lines = (up.data_dir / "client.env").read_text(encoding="utf-8").splitlines()
    # A data folder of the system's own, where this machine has one, would come before the user's.
    return {**clean_env(), "HOME": str(home), **dict(line.split("=", 1) for line in lines)}


def run_in_order(blocks: list[Fence], folder: Path, env: dict[str, str]) -> None:
    """Runs the blocks in one shell, as a user would, and fails with the one that failed."""
    (folder / ".venv").symlink_to(Path(sys.prefix), target_is_directory=True)
    script = "".join(f"printf '%s\\n' '== {block.where}'\n{block.text}" for block in blocks)
    shell = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BLOCK_LIMIT_S,
        check=False,
    )
    assert shell.returncode == 0, shell.stdout
    assert shell.stdout.count("== ") >= len(blocks)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the pages use curl")
@pytest.mark.parametrize("page", TUTORIALS)
def test_the_commands_of_a_page_work_in_order(page: Path, up: Up, tmp_path: Path) -> None:
    blocks = [block for block in fences(page, "sh") if block.note is None]
    assert blocks
    run_in_order(blocks, tmp_path, environment(up))


def test_a_failing_command_is_noticed(tmp_path: Path) -> None:
    block = Fence(ROOT / "README.md", 1, "sh", "echo 'no such file'; false | true\n", None)
    with pytest.raises(AssertionError, match="no such file"):
        run_in_order([block], tmp_path, dict(os.environ))
