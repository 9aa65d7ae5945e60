"""The model servers of this host, found by their programs on the engines' search path."""

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
    # With the interpreter's folder, so that engines in the agent's virtual environment are found without activation.
    return os.pathsep.join(p for p in (env.get("PATH", os.defpath), str(Path(sys.executable).parent)) if p)


def program_of(engine: str, env: Mapping[str, str]) -> str | None:
    """None if no program can be run. A script cannot if its interpreter's virtual environment was removed."""
    file = shutil.which(PROGRAMS[engine], path=search_path(env))
    return None if file is None or lost_interpreter(file) is not None else file


def installed_engines(env: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in sorted(PROGRAMS) if program_of(name, env) is not None)


def lost_interpreter(file: str) -> str | None:
    """The missing interpreter of a script; None if it exists, or if the program needs none."""
    try:
        with Path(file).open("rb") as script:
            match = _SHEBANG.match(script.readline(_MOST_HEAD))
    except OSError:
        return None
    interpreter = None if match is None else os.fsdecode(match[1])
    return interpreter if interpreter is not None and not Path(interpreter).exists() else None


def package_version(engine: str, file: str) -> str | None:
    """The version of the program's Python package, read from its files; None if unknown."""
    # The program is not run, since it would import PyTorch first.
    folders = [str(folder) for folder in dict.fromkeys(_packages_of(Path(file)))]
    packages = importlib.metadata.distributions(name=PROGRAMS[engine], path=folders)
    # A folder that an upgrade has left behind has no version, and Python deprecates reading a missing key.
    return next((package.metadata["Version"] for package in packages if "Version" in package.metadata), None)


def _packages_of(file: Path) -> Iterator[Path]:
    """Folders of packages that belong to a folder of programs: of the link, then of its target."""
    for program in (file, file.resolve()):
        for name in ("site-packages", "dist-packages"):
            yield from sorted((program.parent.parent / "lib").glob(f"python3*/{name}"))
