"""The facts of a host that `gpuward doctor` reads from files, programs and Docker."""

import asyncio
from pathlib import Path

import pytest

from agent.doctor import docker_probe, host_probes
from agent.doctor.host_probes import probe_driver
from agent.doctor.programs import _engine

VERSIONS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024": "535.183.01",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder)": "580.95.05",
}


@pytest.mark.parametrize(("text", "version"), VERSIONS.items())
def test_the_driver_is_read_from_the_kernels_files(tmp_path: Path, text: str, version: str) -> None:
    empty = probe_driver(tmp_path)
    assert (empty.module, empty.on_bus, empty.nodes) == (None, None, 0)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text(f"{text}\nGCC version: gcc 12\n")
    for name, vendor, kind in (("a", "0x10de", "0x030200"), ("b", "0x10de", "0x040300"), ("c", "0x8086", "0x030000")):
        device = tmp_path / "sys/bus/pci/devices" / name
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text(f"{kind}\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-caps"):
        (tmp_path / "dev" / name).touch()
    found = probe_driver(tmp_path)
    assert (found.module, found.on_bus, found.nodes) == (version, 1, 2), "its sound device does not count"


@pytest.mark.parametrize(("own", "unified", "delegated"), [
    ("0::/system.slice/x.service/agent", True, True), ("0::/system.slice/x.service", True, False),
    ("4:memory:/\n0::/system.slice/x.service/agent", True, True), ("4:memory:/", True, False),
    (None, True, None), ("0::/system.slice/x.service/agent", False, None),
])  # fmt: skip
def test_cgroups_are_read_from_their_files(
    tmp_path: Path, own: str | None, unified: bool, delegated: bool | None
) -> None:
    unit = tmp_path / "system.slice/x.service"
    (unit / "agent").mkdir(parents=True)
    (unit / "cgroup.procs").touch()
    (tmp_path / "7").mkdir()
    (tmp_path / "7/cgroup").write_text(f"{own}\n")
    if unified:
        (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    found = host_probes.probe_cgroups(None if own is None else 7, tmp_path, tmp_path)
    assert (found.unified, found.delegated) == (unified, delegated)


async def test_an_engines_version(tmp_path: Path) -> None:
    for number, (body, expected) in enumerate((
        ("echo 'ggml: no devices found'; sleep 0.1; echo 'version: 6123 (abc1234)'", ("6123", "")),
        ("echo 0.33.0", ("0.33.0", "")),
        ("echo broken >&2; exit 3", ("", "it exits with code 3: broken")),
        ("exit 0", ("", "it prints nothing")),
    )):  # fmt: skip
        program = tmp_path / f"llama-server-{number}"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        found = await _engine("llama-cpp", "llama-server", str(program))
        assert (found.version, found.error) == expected


async def test_dockers_answer_may_come_in_pieces(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in (b"HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{", b'"ServerVersion": "28.2"}'):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
        over.set()

    path = str(tmp_path / "docker.sock")
    async with await asyncio.start_unix_server(answer, path):
        assert await docker_probe._docker_info(path) == {"ServerVersion": "28.2"}
        await over.wait()
