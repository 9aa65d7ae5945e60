"""What the installed llama-server can do: whether its build uses GPUs, and knows the bound of its cache of prompts.

Asking it with GPUs would open a context on each, in memory that may be claimed. So it is asked without them first: a
build with a GPU's library then says that it finds none, or that it loaded the library.
"""

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from agent.installed_engines import PROGRAMS, search_path
from agent.program_output import output_of
from schemas.engine_builds import LLAMA_CPP_ON_CPU, LLAMA_CPP_WITHOUT_CACHE_RAM

_LIMIT_S: Final = 5.0
_MOST_BYTES: Final = 2**19  # its help has 60 KiB
_AGAIN_S: Final = 600.0  # what is missing may be repaired beside the program: a library, a driver
_HIDDEN: Final = {
    "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "", "GGML_VK_VISIBLE_DEVICES": "",
}  # fmt: skip
_LIBRARY: Final = re.compile(r"cuda|rocm|hip|vulkan|sycl|metal|musa|cann|opencl", re.IGNORECASE)
_LIST: Final = "Available devices:"
_DEVICE: Final = re.compile(r"^  \S+: .*MiB", re.MULTILINE)
log = structlog.get_logger()


class EngineBuilds:
    """Asks each build once; one that lacks something again after a while."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[tuple[str, ...], float]] = {}

    async def lacking(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """What the llama-server on the engines' search path lacks, in the words of `schemas.engine_builds`.

        Nothing where there is none, or where it does not answer in time.
        """
        file = shutil.which(PROGRAMS["llama-cpp"], path=search_path(env))
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


async def llama_cpp_lacks(file: str, env: Mapping[str, str]) -> tuple[str, ...]:
    """What this llama-server lacks, as `EngineBuilds.lacking` says it."""
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


def _identity(file: str) -> tuple[object, ...] | None:
    """What changes with the program or the libraries beside it; None: it is gone."""
    try:
        path = Path(file).resolve(strict=True)
        own, beside = path.stat(), path.parent.stat()
    except OSError:
        return None
    return str(path), own.st_ino, own.st_size, own.st_mtime_ns, beside.st_mtime_ns
