"""The model servers on hosts: how to install them, and how agents report them.

An agent reports names of engines, as in manifests, and marks of the form `engine:mark`.
"""

from collections.abc import Iterable, Mapping
from typing import Final

# llama-server was built without a GPU library, or does not detect the host's GPUs.
LLAMA_CPP_ON_CPU: Final = "llama-cpp:no-gpu"
# llama-server is older than --cache-ram, and so than the cache of prompts that the flag bounds.
LLAMA_CPP_WITHOUT_CACHE_RAM: Final = "llama-cpp:no-cache-ram"
# Commands that install each engine on a host, for the environment of its agent.
INSTALL: Final[Mapping[str, str]] = {
    "vllm": "pip install vllm",
    "sglang": "pip install 'sglang[all]'",
    "llama-cpp": "brew install llama.cpp, or a build of llama-server on the agent's PATH",
    "transformers": "pip install 'transformers[serving]'",
}
_VERSION: Final = ":version="
_MOST_VERSION: Final = 64  # characters: a mark stays within the bound of a name


def version_mark(engine: str, version: str) -> str:
    return f"{engine}{_VERSION}{version[:_MOST_VERSION]}"


def versions_of(reported: Iterable[str]) -> dict[str, str]:
    """The versions of the engines that an agent reports, by name; an empty version is unknown."""
    versions = {name: "" for name in sorted(reported) if ":" not in name}
    for name in reported:
        engine, mark, version = name.partition(_VERSION)
        if mark and engine in versions:
            versions[engine] = version
    return versions


def missing_text(engines: Iterable[str]) -> str:
    """The engines that are not installed, and the commands that install them, if known."""
    names = list(dict.fromkeys(engines))
    commands = [INSTALL[name] for name in names if name in INSTALL]
    lacking = f"{names[0]} is not installed" if len(names) == 1 else f"none of {', '.join(names)} is installed"
    return f"{lacking}; install {'it' if len(names) == 1 else 'one'}: {' | '.join(commands)}" if commands else lacking
