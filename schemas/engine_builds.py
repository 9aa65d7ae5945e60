"""The model servers that hosts have installed: how each is installed, and what an agent reports of it.

An agent reports names of engines as manifests have them, and marks of the form `engine:mark` among them.
"""

from collections.abc import Iterable, Mapping
from typing import Final

# llama-server was built without a GPU's library, or finds none of the host's GPUs.
LLAMA_CPP_ON_CPU: Final = "llama-cpp:no-gpu"
# llama-server is older than --cache-ram, and so than the cache of prompts that the flag bounds.
LLAMA_CPP_WITHOUT_CACHE_RAM: Final = "llama-cpp:no-cache-ram"
# What installs each engine on a host, to be run where its agent finds the program.
INSTALL: Final[Mapping[str, str]] = {
    "vllm": "pip install vllm",
    "sglang": "pip install 'sglang[all]'",
    "llama-cpp": "brew install llama.cpp, or a build of llama-server on the agent's PATH",
    "transformers": "pip install 'transformers[serving]'",
}
_VERSION: Final = ":version="
_MOST_VERSION: Final = 64  # characters: a mark stays within the bound of a name


def version_mark(engine: str, version: str) -> str:
    """The mark of an engine's version."""
    return f"{engine}{_VERSION}{version[:_MOST_VERSION]}"


def versions_of(reported: Iterable[str]) -> dict[str, str]:
    """The engines that an agent reports, by name, each with its version; an empty version is unknown."""
    found = {one: "" for one in sorted(reported) if ":" not in one}
    for one in reported:
        engine, mark, version = one.partition(_VERSION)
        if mark and engine in found:
            found[engine] = version
    return found


def missing_text(engines: Iterable[str]) -> str:
    """Which engines are not installed, and what installs them. A name without a known installation is only named."""
    names = list(dict.fromkeys(engines))
    commands = [INSTALL[name] for name in names if name in INSTALL]
    lacking = f"{names[0]} is not installed" if len(names) == 1 else f"none of {', '.join(names)} is installed"
    return f"{lacking}; install {'it' if len(names) == 1 else 'one'}: {' | '.join(commands)}" if commands else lacking
