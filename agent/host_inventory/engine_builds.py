"""Versions of the installed engines, and features of llama-server's build: GPUs, and the bound of its prompt cache.

llama-server is first run without GPUs: with GPUs it would open a context on each, in memory that may be claimed. A
build with a GPU's library then reports that it found no device, or that it loaded the library.
"""

import asyncio
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from agent.host_inventory.installed_engines import PROGRAMS, package_version, program_of
from agent.program_io import output_of
from schemas.engine_builds import LLAMA_CPP_ON_CPU, LLAMA_CPP_WITHOUT_CACHE_RAM, version_mark

_LIMIT_S: Final = 5.0
_MOST_BYTES: Final = 2**19  # its help has 60 KiB
_AGAIN_S: Final = 600.0  # a missing library or driver may be repaired
_HIDDEN: Final = {
    "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": "",
}  # fmt: skip
_LIBRARY: Final = re.compile(r"cuda|rocm|hip|vulkan|sycl|metal|musa|cann|opencl", re.IGNORECASE)
_LIST: Final = "Available devices:"
_DEVICE: Final = re.compile(r"^  \S+: .*MiB", re.MULTILINE)
_VERSION: Final = re.compile(r"^version: *(\S+)", re.MULTILINE)
_LLAMA_CPP: Final = "llama-cpp"
_Identity = tuple[object, ...]
log = structlog.get_logger()


class EngineBuilds:
    """Reads each build once, and an incomplete build again after a while. All agents of a process share the results."""

    def __init__(self) -> None:
        self._known: dict[_Identity, tuple[tuple[str, ...], float]] = {}
        self._versions: dict[str, tuple[_Identity, str | None]] = {}
        self._reading: asyncio.Task[tuple[str, ...]] | None = None

    async def marks(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Marks of `schemas.engine_builds` for versions and missing features; unknown properties have none."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._marks(env), name="builds of engines")
        return await asyncio.shield(self._reading)

    async def _marks(self, env: Mapping[str, str]) -> tuple[str, ...]:
        try:
            versions = [(engine, await self._version(engine, env)) for engine in PROGRAMS]
            marks = [version_mark(engine, version) for engine, version in versions if version]
            return (*marks, *await self.lacking(env))
        finally:
            self._reading = None

    async def lacking(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """Marks of features that the installed llama-server lacks; empty if it is missing or silent."""
        file = program_of(_LLAMA_CPP, env)
        build = None if file is None else _identity(file)
        if file is None or build is None:
            return ()
        lacking, read_s = self._known.get(build, ((), 0.0))
        if build not in self._known or (lacking and time.monotonic() - read_s > _AGAIN_S):
            lacking = await llama_cpp_lacks(file, env)
            self._known = {build: (lacking, time.monotonic())}
            if lacking:
                log.warning("llama-server lacks something", program=file, lacking=",".join(lacking))
        return lacking

    async def _version(self, engine: str, env: Mapping[str, str]) -> str | None:
        file = program_of(engine, env)
        build = None if file is None else _identity(file)
        if file is None or build is None:
            return None
        known = self._versions.get(engine)
        if known is None or known[0] != build:
            own = engine == _LLAMA_CPP
            version = await _llama_cpp_version(file, env) if own else package_version(engine, file)
            known = self._versions[engine] = build, version
        return known[1]


async def _llama_cpp_version(file: str, env: Mapping[str, str]) -> str | None:
    """The build's number; None if unknown."""
    text, error = await output_of([file, "--version"], _LIMIT_S, env=dict(env) | _HIDDEN)
    match = _VERSION.search(text)
    return None if error or match is None else match[1]


async def llama_cpp_lacks(file: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """Marks of `schemas.engine_builds` for missing features."""
    lacking = (LLAMA_CPP_ON_CPU,) if await _without_gpu(file, env) else ()
    text, error = await output_of([file, "--help"], _LIMIT_S, env=dict(env) | _HIDDEN, most_bytes=_MOST_BYTES)
    known = bool(error) or "--ctx-size" not in text or "--cache-ram" in text
    return lacking if known else (*lacking, LLAMA_CPP_WITHOUT_CACHE_RAM)


async def _without_gpu(file: str, env: Mapping[str, str]) -> bool:
    """Whether it lists no device. False if unknown: builds before 2025 have no such list."""
    hidden, error = await output_of([file, "--list-devices"], _LIMIT_S, env=dict(env) | _HIDDEN)
    if error or _LIST not in hidden or _LIBRARY.search(hidden) or _DEVICE.search(hidden):
        return False
    shown, error = await output_of([file, "--list-devices"], _LIMIT_S, env=env)
    return not error and _LIST in shown and not _DEVICE.search(shown)


def _identity(file: str) -> _Identity | None:
    """Changes with the program or the libraries next to it; None if it is gone."""
    try:
        path = Path(file).resolve(strict=True)
        own, folder = path.stat(), path.parent.stat()
    except OSError:
        return None
    return str(path), own.st_ino, own.st_size, own.st_mtime_ns, folder.st_mtime_ns
