"""What the installed engines are: their versions, and what the build of llama-server can do.

Of llama-server: whether its build uses GPUs, and knows the bound of its cache of prompts.

Asking it with GPUs would open a context on each, in memory that may be claimed. So it is asked without them first: a
build with a GPU's library then says that it finds none, or that it loaded the library.
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
_AGAIN_S: Final = 600.0  # what is missing may be repaired next to the program: a library, a driver
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
    """Reads each build once; one that lacks something again after a while.

    All agents of a process share what is known of its programs, and they are asked for one of them.
    """

    def __init__(self) -> None:
        self._known: dict[_Identity, tuple[tuple[str, ...], float]] = {}
        self._versions: dict[str, tuple[_Identity, str | None]] = {}
        self._asking: asyncio.Task[tuple[str, ...]] | None = None

    async def marks(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """The versions of the installed engines and what they lack, in the words of `schemas.engine_builds`.

        What is unknown has no mark, as where llama-server does not answer in time.
        """
        if self._asking is None:
            self._asking = asyncio.create_task(self._marks(env), name="builds of engines")
        return await asyncio.shield(self._asking)

    async def _marks(self, env: Mapping[str, str]) -> tuple[str, ...]:
        try:
            versions = [(engine, await self._version(engine, env)) for engine in PROGRAMS]
            found = [version_mark(engine, version) for engine, version in versions if version]
            return (*found, *await self.lacking(env))
        finally:
            self._asking = None

    async def lacking(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """What the llama-server on the engines' search path lacks, in the words of `schemas.engine_builds`.

        Nothing where there is none, or where it does not answer in time.
        """
        file = program_of(_LLAMA_CPP, env)
        build = None if file is None else _identity(file)
        if file is None or build is None:
            return ()
        found, asked = self._known.get(build, ((), 0.0))
        if build not in self._known or (found and time.monotonic() - asked > _AGAIN_S):
            found = await llama_cpp_lacks(file, env)
            self._known = {build: (found, time.monotonic())}
            if found:
                log.warning("llama-server lacks something", program=file, lacking=",".join(found))
        return found

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
    """The number of its build; None: unknown."""
    text, error = await output_of([file, "--version"], _LIMIT_S, env=dict(env) | _HIDDEN)
    match = _VERSION.search(text)
    return None if error or match is None else match[1]


async def llama_cpp_lacks(file: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """What this llama-server lacks, in the words of `schemas.engine_builds`."""
    found = (LLAMA_CPP_ON_CPU,) if await _without_gpu(file, env) else ()
    text, error = await output_of([file, "--help"], _LIMIT_S, env=dict(env) | _HIDDEN, most_bytes=_MOST_BYTES)
    known = bool(error) or "--ctx-size" not in text or "--cache-ram" in text
    return found if known else (*found, LLAMA_CPP_WITHOUT_CACHE_RAM)


async def _without_gpu(file: str, env: Mapping[str, str]) -> bool:
    """Whether it lists no device. False where that is unknown: builds of before 2025 have no such list."""
    hidden, error = await output_of([file, "--list-devices"], _LIMIT_S, env=dict(env) | _HIDDEN)
    if error or _LIST not in hidden or _LIBRARY.search(hidden) or _DEVICE.search(hidden):
        return False
    shown, error = await output_of([file, "--list-devices"], _LIMIT_S, env=env)
    return not error and _LIST in shown and not _DEVICE.search(shown)


def _identity(file: str) -> _Identity | None:
    """What changes with the program or the libraries next to it; None: it is gone."""
    try:
        path = Path(file).resolve(strict=True)
        own, beside = path.stat(), path.parent.stat()
    except OSError:
        return None
    return str(path), own.st_ino, own.st_size, own.st_mtime_ns, beside.st_mtime_ns
