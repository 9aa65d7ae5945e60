"""Makes two environments on the host, from the packages of the kit and of the host, and runs the check in them.

One is for Gpuward, the other for `transformers serve`. This needs only the standard library: a wheel is unpacked,
which suffices for packages whose scripts are not called. Other packages come from the site folders of the interpreter
that runs this, which may itself be in an environment.
"""

import hashlib
import json
import os
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KIT = HERE.parent
LIMIT_S = 435  # of the check, with this file's own work
# The first import on a new machine reads gigabytes from its disk, so it starts before wheels are unpacked.
WARM_UP = "import torch, transformers.models.llama.modeling_llama"
VENV_LIMIT_S = 60
SCRIPT = """#!{python}
import sys
from importlib.metadata import entry_points

script = next(entry for entry in entry_points(group="console_scripts") if entry.name == "transformers")
sys.argv[0] = "transformers"
sys.exit(script.load()())
"""


def main() -> None:
    began = time.monotonic()
    contents = json.loads((HERE / "kit.json").read_text())
    complain(missing(contents))
    version = "{}.{}".format(*sys.version_info[:2])
    if version != contents["python"]:
        complain(
            [f"this is Python {version}, and the kit is for {contents['python']}: name it, as in PYTHON=python3.12"]
        )
    null = subprocess.DEVNULL
    warm = subprocess.Popen([sys.executable, "-c", WARM_UP], stdin=null, stdout=null, stderr=null)
    work = Path(tempfile.mkdtemp(prefix="gpu-kit-environments-", dir="/var/tmp"))
    work.chmod(0o755)
    product = environment(work / "product", contents, "product")
    with tarfile.open(HERE / "postgres.tar.gz") as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none yet
        packed.extractall(packages_of(product))  # noqa: S202 - `make gpu-kit` wrote it
    engine = environment(work / "engine", contents, "engine")
    programs = work / "programs"
    programs.mkdir()
    (programs / "transformers").write_text(SCRIPT.format(python=engine))
    (programs / "transformers").chmod(0o755)
    left = LIMIT_S - (time.monotonic() - began)
    argv = [str(product), "-P", "-m", "gpu_kit", "--engines", str(programs), "--engine-python", str(engine),
            "--seconds", str(round(left)), *sys.argv[1:]]  # fmt: skip
    signal.signal(signal.SIGTERM, lambda *_: None)  # the check gets it, too, and ends once its results are written
    code = subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(HERE)}, check=False).returncode
    warm.kill()
    warm.wait()
    shutil.rmtree(work, ignore_errors=True)
    sys.exit(code)


def missing(contents: "dict[str, Any]") -> "list[str]":
    wrong = []
    for name, entry in contents["files"].items():
        file = KIT / entry["folder"] / name
        if not file.exists():
            wrong.append(f"{entry['folder']}/{name} is missing: put the folder {entry['folder']} next to {HERE.name}")
        elif hashlib.sha256(file.read_bytes()).hexdigest() != entry["sha256"]:
            wrong.append(f"{entry['folder']}/{name} differs from what was packed: send the folder again")
    return wrong


def complain(wrong: "list[str]") -> None:
    if wrong:
        sys.exit("\n".join(f"check: {error}" for error in wrong))


def environment(folder: Path, contents: "dict[str, Any]", kind: str) -> Path:
    """Makes an environment with the kit's packages of this kind before the host's; returns its interpreter."""
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)], check=True, timeout=VENV_LIMIT_S)
    python = folder / "bin" / "python"
    packages = packages_of(python)
    lines = [f"import site; site.addsitedir({folder!r})" for folder in host_sites()]
    (packages / "zz-host.pth").write_text("\n".join([*lines, ""]))  # files are read by name, and this file last
    for name, entry in sorted(contents["files"].items()):
        if name.startswith(f"{kind}/"):
            unpack(KIT / entry["folder"] / name, packages)
    return python


def packages_of(python: Path) -> Path:
    return python.parents[1] / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"


def host_sites() -> "list[str]":
    named = [*site.getsitepackages(), *(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))]
    return [folder for folder in dict.fromkeys(named) if Path(folder).is_dir()]


def unpack(wheel: Path, packages: Path) -> None:
    """Unpacks a wheel into the packages; of its `.data` only modules."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)  # noqa: S202 - as above
    for data in packages.glob("*.data"):
        for part in ("purelib", "platlib"):
            if (data / part).is_dir():
                shutil.copytree(data / part, packages, dirs_exist_ok=True)
        shutil.rmtree(data)


if __name__ == "__main__":
    main()
