"""A host with NVIDIA GPUs that a test makes up: the false libnvidia-ml, built once, and the file that it reads."""

import fcntl
import hashlib
import importlib.metadata
import os
import subprocess
import tempfile
from pathlib import Path

_SOURCE = Path(__file__).with_name("false_nvml.c")
_HEADER_PACKAGE = "nvidia-nvml-dev"
_COMPILE_S = 120
GPUS = tuple(f"GPU-0000000{n}-0000-4000-8000-00000000000{n}" for n in range(8))
SLICES = tuple(f"MIG-0000000{n}-0000-5000-8000-00000000000{n}" for n in range(4))


def library_folder() -> Path:
    """The folder with `libnvidia-ml.so.1`, compiled against the pinned `nvml.h` unless this source has been already."""
    header = next(f for f in importlib.metadata.files(_HEADER_PACKAGE) or () if f.name == "nvml.h").locate()
    of = hashlib.sha256(_SOURCE.read_bytes() + Path(header).read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"gpuward-false-nvml-{os.getuid()}-{of}"
    folder.mkdir(mode=0o755, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        if not library.exists():
            flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]
            built = library.with_suffix(f".{os.getpid()}")
            argv = ["cc", *flags, "-Wno-deprecated-declarations", f"-I{Path(header).parent}", "-o", str(built)]
            subprocess.run([*argv, str(_SOURCE), "-lpthread"], check=True, timeout=_COMPILE_S)
            built.rename(library)
    return folder


class FalseDriver:
    """One host's GPUs. Each change is written at once, whole; the library reads it at its next call.

    Attributes:
        env: of the processes that shall see these GPUs.
        driver: the driver's version; None: no driver is loaded.
        gpus: by UUID in the order of the indexes: values of `gpu` lines.
        slices: likewise of `slice` lines.
        lines: other lines: processes, events and faults.
    """

    def __init__(self, folder: Path, gpus: int = 2) -> None:
        self._file = folder / "false-nvml"
        self.env = {"LD_LIBRARY_PATH": str(library_folder()), "FALSE_NVML": str(self._file)}
        self.driver: str | None = "580.95.05"
        self.gpus: dict[str, dict[str, object]] = {uuid: {} for uuid in GPUS[:gpus]}
        self.slices: dict[str, dict[str, object]] = {}
        self.lines: list[str] = []
        self._events = 0
        self.write()

    def set(self, uuid: str, **values: object) -> None:
        """Sets values of a GPU or slice."""
        (self.slices if uuid in self.slices else self.gpus)[uuid].update(values)
        self.write()

    def add(self, *lines: str) -> None:
        """Adds processes, events or faults."""
        self.lines += lines
        self.write()

    def only(self, *lines: str) -> None:
        """Replaces them; without any, all is well again."""
        self.lines = list(lines)
        self.write()

    def xid(self, uuid: str, code: int, gpu_instance: int | None = None) -> None:
        """Reports an Xid once to each process that waits for events now."""
        self._events += 1
        self.add(f"xid {self._events} {uuid} {code}" + ("" if gpu_instance is None else f" {gpu_instance}"))

    def change_driver(self, version: str | None) -> None:
        """Installs another version, as under a running agent; None unloads the driver."""
        self.driver = version
        self.write()

    def write(self) -> None:
        """Writes the file in one step: a reader sees the old world or the new one."""
        lines = [] if self.driver is None else [f"driver {self.driver}"]
        for kind, devices in (("gpu", self.gpus), ("slice", self.slices)):
            lines += [" ".join([kind, uuid, *(f"{k}={v}" for k, v in d.items())]) for uuid, d in devices.items()]
        new = self._file.with_suffix(".new")
        new.write_text("\n".join([*lines, *self.lines, ""]))
        new.rename(self._file)
