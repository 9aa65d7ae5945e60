"""Which model servers are installed on this host: each is found by its program on the engines' search path."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# By the names that manifests use. An engine without a program of its own (custom, simulated) runs on every host.
PROGRAMS: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama-cpp": "llama-server",
    "transformers": "transformers",
}


def search_path(env: Mapping[str, str]) -> str:
    """Where engines are searched: the agent's own path, then its interpreter's folder.

    Engines installed in the agent's environment are thus found even if that environment was not activated.
    """
    return os.pathsep.join(p for p in (env.get("PATH", os.defpath), str(Path(sys.executable).parent)) if p)


def installed_engines(env: Mapping[str, str]) -> tuple[str, ...]:
    """The engines whose program is found, by name."""
    path = search_path(env)
    return tuple(name for name, program in sorted(PROGRAMS.items()) if shutil.which(program, path=path))
