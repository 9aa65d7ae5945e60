"""Which servers of models are installed on this host: each is known by its program on the engines' search path."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# As manifests name the engines. What has no program of its own (custom, simulated) runs everywhere.
PROGRAMS: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama-cpp": "llama-server",
    "transformers": "transformers",
}


def search_path(env: Mapping[str, str]) -> str:
    """Where engines are looked for: the agent's own path, then the folder of its interpreter.

    So engines that are installed beside the agent are found though nobody activated its environment.
    """
    return os.pathsep.join(p for p in (env.get("PATH", os.defpath), str(Path(sys.executable).parent)) if p)


def installed_engines(env: Mapping[str, str]) -> tuple[str, ...]:
    """The engines whose program is found, by name."""
    path = search_path(env)
    return tuple(name for name, program in sorted(PROGRAMS.items()) if shutil.which(program, path=path))
