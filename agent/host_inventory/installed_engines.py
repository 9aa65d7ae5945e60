"""Which model servers are installed on this host: each is found by its program on the engines' search path."""

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

# By the names that manifests use. An engine without a program of its own (custom, simulated) runs on every host.
PROGRAMS: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llama-cpp": "llama-server",
    "transformers": "transformers",
}
_SHEBANG: Final = re.compile(rb"#!\s*(\S+)[^\n]*$", re.MULTILINE)
_MOST_HEAD: Final = 512


def search_path(env: Mapping[str, str]) -> str:
    """Where engines are searched: the agent's own path, then its interpreter's folder.

    Engines installed in the agent's environment are thus found even if that environment was not activated.
    """
    return os.pathsep.join(p for p in (env.get("PATH", os.defpath), str(Path(sys.executable).parent)) if p)


def program_of(engine: str, env: Mapping[str, str]) -> str | None:
    """The engine's program on the engines' search path; None: there is none that could be run.

    A script whose interpreter is gone, as after the removal of a virtual environment, cannot be run.
    """
    file = shutil.which(PROGRAMS[engine], path=search_path(env))
    return None if file is None or lost_interpreter(file) is not None else file


def installed_engines(env: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in sorted(PROGRAMS) if program_of(name, env) is not None)


def lost_interpreter(file: str) -> str | None:
    """The interpreter that a script names and that is not there; None: it is there, or the program needs none."""
    try:
        with Path(file).open("rb") as script:
            match = _SHEBANG.match(script.readline(_MOST_HEAD))
    except OSError:
        return None
    interpreter = None if match is None else os.fsdecode(match[1])
    return interpreter if interpreter is not None and not Path(interpreter).exists() else None


def package_version(engine: str, file: str) -> str | None:
    """The version of the Python package that brought this program, read from its files; None: unknown.

    Nothing is run: the program itself would import PyTorch first.
    """
    folders = [str(folder) for folder in dict.fromkeys(_packages_of(Path(file)))]
    found = importlib.metadata.distributions(name=PROGRAMS[engine], path=folders)
    # A folder that an upgrade has left behind has none; Python deprecates to ask it all the same.
    return next((one.metadata["Version"] for one in found if "Version" in one.metadata), None)


def _packages_of(file: Path) -> Iterator[Path]:
    """Where packages are that belong to a folder of programs: of the link, then of the file that it names."""
    for program in (file, file.resolve()):
        for name in ("site-packages", "dist-packages"):
            yield from sorted((program.parent.parent / "lib").glob(f"python3*/{name}"))
