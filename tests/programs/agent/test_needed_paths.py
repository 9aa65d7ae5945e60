"""What an engine's account may not enter or read is named before the engine starts."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.processes.account import Account, own_account
from agent.processes.needed_paths import PathChecks, why_unreadable
from schemas.exit_causes import Cause, cause_of_failed_start

ENGINE = Account(60_706, 60_706)
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs anything as another account")


@pytest.fixture
def model() -> Iterator[Path]:
    """A model that all may read, on a way that all may take, unlike pytest's own folder."""
    home = Path(tempfile.mkdtemp(prefix="gpuward-paths-"))
    folder = home / "models" / "tiny"
    folder.mkdir(parents=True)
    for path in (home, home / "models", folder):
        path.chmod(0o755)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
        (folder / name).chmod(0o644)
    yield folder
    shutil.rmtree(home)


def _all_well(_: Path) -> Path | None:
    return None


def _closed(model: Path) -> Path:
    model.chmod(0o700)
    return model


def _closed_above(model: Path) -> Path:
    model.parent.chmod(0o700)
    return model.parent


def _not_listed(model: Path) -> Path:
    model.chmod(0o711)
    return model


def _closed_file(model: Path) -> Path:
    (model / "config.json").chmod(0o600)
    return model / "config.json"


def _link_to_a_closed_place(model: Path) -> Path:
    secret = model.parent.parent / "blobs"
    secret.mkdir(mode=0o700)
    (secret / "weights").write_text("")
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").symlink_to(secret / "weights")
    return secret


def _is_a_link_to_a_closed_place(model: Path) -> Path:
    secret = model.parent.parent / "elsewhere"
    secret.mkdir(mode=0o700)
    shutil.move(model, secret / "tiny")
    model.symlink_to(secret / "tiny")
    return secret


def _absent(model: Path) -> None:
    shutil.rmtree(model)


def _a_broken_link_in_it(model: Path) -> None:
    (model / "more").symlink_to("nothing")


def _closed_files_that_no_engine_reads(model: Path) -> None:
    for name in ("optimizer.pt", "training_args.bin", "notes.txt", ".git-credentials"):
        (model / name).write_text("")
        (model / name).chmod(0o600)
    (model / "pytorch_model.bin").write_text("")  # there are safetensors
    (model / "pytorch_model.bin").chmod(0o600)


def _a_link_to_a_closed_folder(model: Path) -> None:
    secret = model.parent.parent / "home"
    secret.mkdir(mode=0o700)
    (model / "data").symlink_to(secret)


def _closed_weights_of_pytorch(model: Path) -> Path:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_text("")
    (model / "pytorch_model.bin").chmod(0o600)
    return model / "pytorch_model.bin"


def _behind_thousands_of_files(model: Path) -> Path:
    for n in range(3_000):
        (model / f"{n}.jpg").touch()
    return _closed_file(model)


def _of_its_group(model: Path) -> None:
    os.chown(model, 0, ENGINE.gid)
    model.chmod(0o750)


CASES = (
    _all_well, _closed, _closed_above, _not_listed, _closed_file, _link_to_a_closed_place,
    _is_a_link_to_a_closed_place, _absent, _a_broken_link_in_it, _of_its_group, _closed_files_that_no_engine_reads,
    _a_link_to_a_closed_folder, _closed_weights_of_pytorch, _behind_thousands_of_files,
)  # fmt: skip


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__.strip("_"))
def test_the_place_is_named_with_whose_account_needs_what(model: Path, make: Callable[[Path], Path | None]) -> None:
    place = make(model)
    why = why_unreadable(ENGINE, reads=[model])
    if place is None:
        assert why == ""
        return
    assert f"{place};" in why
    assert f"uid {ENGINE.uid}" in why
    assert cause_of_failed_start(why) is Cause.PATH_UNREADABLE
    command = why.partition("on that host: ")[2]
    subprocess.run(command.split(), check=True, timeout=10)
    assert f"{place};" not in why_unreadable(ENGINE, reads=[model]), "what it says helps"


async def test_other_blocked_calls_keep_no_look_waiting(model: Path) -> None:
    freed = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    blocked = loop.run_in_executor(None, freed.wait)
    try:
        async with asyncio.timeout(5):
            assert await PathChecks().why_unreadable(ENGINE, reads=[_closed(model)])
    finally:
        freed.set()
        await blocked


def test_the_agents_own_root_gets_everywhere(model: Path) -> None:
    _closed(model)
    assert why_unreadable(own_account(), reads=[model]) == ""


def test_what_is_bound_into_a_container_needs_no_way_to_it(model: Path) -> None:
    _closed_above(model)
    assert why_unreadable(ENGINE, reads=[model], mounted=True) == ""
    _closed(model)
    assert f"{model};" in why_unreadable(ENGINE, reads=[model], mounted=True)


def test_a_working_folder_needs_to_be_entered_alone(model: Path) -> None:
    model.chmod(0o711)
    assert why_unreadable(ENGINE, reads=(), enters=[model]) == ""
    assert f"{_closed_above(model)};" in why_unreadable(ENGINE, reads=(), enters=[model])


@pytest.mark.skipif(shutil.which("setfacl") is None, reason="setfacl is not installed")
def test_an_access_control_list_counts(model: Path) -> None:
    _closed(model)
    done = subprocess.run(["setfacl", "-m", f"u:{ENGINE.uid}:rx", model], check=False, timeout=10)
    if done.returncode:
        pytest.skip("this file system has no access control lists")
    assert why_unreadable(ENGINE, reads=[model]) == ""
    _closed_above(model)  # in a container, only the list counts
    assert why_unreadable(ENGINE, reads=[model], mounted=True) == ""
