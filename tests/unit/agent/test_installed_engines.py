"""Which engines a host reports: what is installed there, with versions, or what a file of simulated hosts names."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.errors import ProgramMissingError
from agent.gpus.simulated import SimulatedReader
from agent.host_inventory.host import simulated_host
from agent.host_inventory.inventory import InventoryWatch
from agent.processes.engine_launch import EngineLaunch
from agent.processes.engine_parent import EngineParent
from schemas.engine_builds import versions_of
from schemas.exit_causes import Cause, cause_of_failed_start
from schemas.simulated import SimulatedWorker


def install(folder: Path, name: str, *, version: str = "", interpreter: str = sys.executable) -> None:
    """A program as pip installs it: a script in bin, and the package's facts beside it."""
    program = folder / "bin" / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!{interpreter}\n")
    program.chmod(0o755)
    if version:
        facts = folder / "lib/python3.11/site-packages" / f"{name}-{version}.dist-info"
        facts.mkdir(parents=True)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def watch(**fields: Any) -> InventoryWatch:
    worker = SimulatedWorker.model_validate({"name": "gpu-1", "gpus": [{"model": "H100", "memory": "80GiB"}]} | fields)
    return InventoryWatch(SimulatedReader(worker, lambda: (), lambda: 0.0), simulated_host(worker, {}))


async def reported(inventory: InventoryWatch) -> dict[str, str]:
    engines = (await inventory.read()).host.engines
    assert engines is not None
    return versions_of(engines)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}/env/bin:{tmp_path}/links:{os.defpath}")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return tmp_path / "env"


async def test_a_simulated_host_reports_what_is_installed_here(path: Path) -> None:
    inventory = watch()
    assert await reported(inventory) == {}
    install(path, "transformers", version="5.1.0")
    assert await reported(inventory) == {"transformers": "5.1.0"}
    install(path, "vllm", interpreter="/usr/bin/env python3")
    assert await reported(inventory) == {"transformers": "5.1.0", "vllm": ""}


async def test_the_engines_that_its_file_names_count(path: Path) -> None:
    install(path, "transformers", version="5.1.0")
    assert await reported(watch(engines=["vllm"])) == {"vllm": ""}
    assert await reported(watch(engines=[])) == {}


async def test_a_named_engine_that_a_start_did_not_find_is_withdrawn_until_it_is_there(path: Path) -> None:
    inventory = watch(engines=["vllm", "transformers"])
    inventory.note_missing("vllm")
    assert await reported(inventory) == {"transformers": ""}
    inventory.note_missing("/opt/own/program")
    install(path, "vllm")
    assert await reported(inventory) == {"vllm": "", "transformers": ""}


async def test_a_script_whose_interpreter_is_gone_is_not_installed(path: Path) -> None:
    install(path, "vllm", version="0.11.0", interpreter="/gone/bin/python")
    assert await reported(watch()) == {}


@pytest.mark.usefixtures("path")
async def test_a_version_is_found_behind_a_link(tmp_path: Path) -> None:
    install(tmp_path / "tools", "sglang", version="0.5.3")
    (tmp_path / "links").mkdir()
    (tmp_path / "links/sglang").symlink_to(tmp_path / "tools/bin/sglang")
    assert await reported(watch()) == {"sglang": "0.5.3"}


async def test_a_replaced_version_is_seen(path: Path) -> None:
    inventory = watch()
    install(path, "vllm", version="0.10.0")
    assert await reported(inventory) == {"vllm": "0.10.0"}
    (path / "lib/python3.11/site-packages/vllm-0.10.0.dist-info/METADATA").unlink()
    install(path, "vllm", version="0.11.0", interpreter="/bin/sh")
    assert await reported(inventory) == {"vllm": "0.11.0"}


async def test_a_cpu_build_of_llama_server_runs_on_simulated_gpus(path: Path) -> None:
    install(path, "llama-server")
    (path / "bin/llama-server").write_text(
        "#!/bin/sh\n"
        "case $1 in --list-devices) echo 'Available devices:';; --version) echo 'version: 6500 (abc)';; esac\n"
    )
    engines = (await watch().read()).host.engines or ()
    assert versions_of(engines) == {"llama-cpp": "6500"}
    assert not [one for one in engines if one.endswith("no-gpu")]


@pytest.mark.parametrize(
    ("program", "named"),
    [("vllm", "pip install vllm"), ("own-server", "own-server"), ("/no/such/server", "/no/such/server")],
)
async def test_a_start_without_its_program_names_what_installs_it(tmp_path: Path, program: str, named: str) -> None:
    parents: list[EngineParent] = []
    launch = EngineLaunch(
        [program], {"PATH": f"{tmp_path}"}, work=tmp_path, log=tmp_path / "log", record=tmp_path / "end"
    )
    async with launch:
        parents.append(launch.parent)
        with pytest.raises(ProgramMissingError) as refused:
            await launch.go()
    await parents[0].release()
    parents[0].close()
    assert cause_of_failed_start(str(refused.value)) is Cause.ENGINE_MISSING
    assert named in str(refused.value)
