"""What an installed llama-server lacks, by what real builds print."""

import os
from pathlib import Path

import pytest
import structlog

from agent.host_inventory.engine_builds import EngineBuilds
from schemas.engine_builds import LLAMA_CPP_ON_CPU, LLAMA_CPP_WITHOUT_CACHE_RAM

# common_print_available_devices of llama.cpp, and what its CUDA library says where no device is visible.
NONE = "echo 'Available devices:'; echo '  (none)'"
ONE = "echo 'Available devices:'; echo '  CUDA0: NVIDIA H100 80GB HBM3 (81090 MiB, 80441 MiB free)'"
NO_CUDA = "echo 'ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected' >&2"
LOADED = "echo 'load_backend: loaded CUDA backend from /opt/libggml-cuda.so' >&2"
HELP = "echo '-c,    --ctx-size N   size of the prompt context'"
NEW = f"{HELP}; echo '-cram, --cache-ram N   maximum cache size in MiB'"


def program(folder: Path, devices: str, help_: str = NEW) -> None:
    file = folder / "bin/llama-server"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        f'#!/bin/sh\necho "$1 ${{CUDA_VISIBLE_DEVICES-all}}" >> {folder}/asked\n'
        f'case "$1" in --list-devices) {devices};; --help) {help_};; esac\n'
    )
    file.chmod(0o755)


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize(
    ("devices", "help_", "expected"),
    [
        (NONE, NEW, (LLAMA_CPP_ON_CPU,)),
        (f"{NO_CUDA}; {NONE}", NEW, ()),
        (f"{LOADED}; {NONE}", NEW, ()),
        # A library that says nothing: its devices show only where they are visible.
        (f'[ "${{CUDA_VISIBLE_DEVICES-all}}" = all ] && {{ {ONE}; }} || {{ {NONE}; }}', NEW, ()),
        (ONE, NEW, ()),
        ("echo 'error: invalid argument: --list-devices' >&2; exit 1", NEW, ()),
        (ONE, HELP, (LLAMA_CPP_WITHOUT_CACHE_RAM,)),
        (ONE, "exit 1", ()),
        (ONE, "echo unknown", ()),
        (NONE, HELP, (LLAMA_CPP_ON_CPU, LLAMA_CPP_WITHOUT_CACHE_RAM)),
    ],
)
async def test_what_a_build_lacks(tmp_path: Path, devices: str, help_: str, expected: tuple[str, ...]) -> None:
    program(tmp_path, devices, help_)
    assert await EngineBuilds().lacking({"PATH": f"{tmp_path}/bin:{os.defpath}"}) == expected


async def test_gpus_are_touched_only_where_the_build_shows_no_library(tmp_path: Path) -> None:
    """A device is listed with its free memory, which opens a context in memory that may be claimed."""
    program(tmp_path, f"{NO_CUDA}; {NONE}")
    await EngineBuilds().lacking({"PATH": f"{tmp_path}/bin:{os.defpath}"})
    assert asked(tmp_path) == ["--list-devices ", "--help "]


async def test_a_build_is_asked_once_until_it_changes(tmp_path: Path) -> None:
    env, builds = {"PATH": f"{tmp_path}/bin:{os.defpath}"}, EngineBuilds()
    program(tmp_path, NONE)
    with structlog.testing.capture_logs() as logs:
        assert [await builds.lacking(env) for _ in range(3)] == [(LLAMA_CPP_ON_CPU,)] * 3
    assert [one["lacking"] for one in logs] == [LLAMA_CPP_ON_CPU]
    assert len(asked(tmp_path)) == 3
    program(tmp_path, f"{NO_CUDA}; {NONE}; true")
    assert await builds.lacking(env) == ()
    (tmp_path / "bin/llama-server").unlink()
    assert await builds.lacking({"PATH": f"{tmp_path}/bin"}) == ()
