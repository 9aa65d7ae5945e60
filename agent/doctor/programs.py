"""Versions of installed programs."""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agent.decide.doctor.host import EngineProbe
from agent.decide.engine_environment import passed_on
from agent.host_inventory.engine_builds import llama_cpp_lacks
from agent.host_inventory.installed_engines import PROGRAMS, search_path
from agent.program_io import output_of
from schemas.engine_builds import LLAMA_CPP_ON_CPU

ENGINE_LIMIT_S: Final = 15.0
_TOOL_LIMIT_S: Final = 5.0
_VERSION: Final = re.compile(r"\d+(?:\.\d+)+\S*|version:? *\S+")
# The package's version comes at once; the program would import PyTorch first.
_PACKAGE_VERSION: Final = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
_SHEBANG: Final = re.compile(rb"#!\s*(\S*python[\d.]*)\s*$", re.MULTILINE)


async def toolkit_version() -> str | None:
    """The version of NVIDIA's container toolkit; None if not installed."""
    for program in ("nvidia-ctk", "nvidia-container-runtime-hook", "nvidia-container-cli"):
        file = shutil.which(program)
        if file is not None:
            text, _ = await output_of([file, "--version"], _TOOL_LIMIT_S)
            match = _VERSION.search(text)
            return match[0].removeprefix("version:").strip() if match else "of unknown version"
    return None


async def installed(listed: tuple[str, ...] = ()) -> tuple[EngineProbe, ...]:
    """The engines on the agent's search path, each with its version."""
    env = passed_on(os.environ, listed)
    path = search_path(env)
    files = [(name, program, shutil.which(program, path=path)) for name, program in sorted(PROGRAMS.items())]
    return tuple(await asyncio.gather(*(_engine(name, package, file, env) for name, package, file in files if file)))


async def _engine(name: str, package: str, file: str, env: Mapping[str, str] = os.environ) -> EngineProbe:
    python = _interpreter(file)
    if python is not None:
        text, error = await output_of([python, "-P", "-c", _PACKAGE_VERSION, package], ENGINE_LIMIT_S, env=env)
        if not error and text.strip():
            return EngineProbe(name, file, version=text.split()[-1])
    text, error = await output_of([file, "--version"], ENGINE_LIMIT_S, env=env)
    match = _VERSION.search(text)
    if match is not None and not error:
        lacking = await llama_cpp_lacks(file, env) if name == "llama-cpp" else ()
        version = match[0].removeprefix("version:").strip()
        return EngineProbe(name, file, version=version, on_cpu=LLAMA_CPP_ON_CPU in lacking)
    last = text.strip().splitlines()[-1:] or ["it prints nothing"]
    return EngineProbe(name, file, error=error or last[0][:200])


def _interpreter(file: str) -> str | None:
    """The Python of a script; None for other files."""
    try:
        with Path(file).open("rb") as script:
            match = _SHEBANG.match(script.readline(512))
    except OSError:
        return None
    return os.fsdecode(match[1]) if match else None
