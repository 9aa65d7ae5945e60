"""A description of this host, and whether PyTorch can use its GPU."""

import importlib.metadata
import json
import os
import platform
import shutil
from collections.abc import Iterator
from typing import Final

from gpu_kit.kit import Kit, output_of
from gpu_kit.results import Finding, Status, judged, noted, skipped

_COMMANDS: Final = (
    ("nvidia-smi", "-q"),
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "mig", "-lgi"),
    ("nvcc", "--version"),
    ("uname", "-a"),
    ("lscpu",),
    ("free", "-m"),
    ("df", "-h"),
)
_LIMIT_S: Final = 10.0
_TORCH_LIMIT_S: Final = 60.0
_TORCH: Final = (
    "import json, torch\n"
    "on = torch.cuda.is_available()\n"
    "print(json.dumps({'torch': torch.__version__, 'cuda': on,"
    " 'device': torch.cuda.get_device_name(0) if on else ''}))"
)
_OURS: Final = ("gpuward", "aiohttp", "uvloop", "numpy", "nvidia-ml-py", "pydantic", "huggingface-hub")


def host(kit: Kit) -> Iterator[Finding]:
    """Versions, `host.txt`, and whether PyTorch finds CUDA."""
    parts = []
    for argv in _COMMANDS:
        code, text = output_of(argv, _LIMIT_S)
        parts.append(f"$ {' '.join(argv)}\n{text}{'' if code == 0 else f'(exit code {code})'}\n")
    (kit.results / "host.txt").write_text("\n".join(parts))
    yield noted("python", platform.python_version(), cores=os.cpu_count(), kernel=platform.release())
    yield noted("packages", ", ".join(f"{name} {_version(name)}" for name in _OURS))
    yield noted("nvcc", shutil.which("nvcc") or "not on the search path")
    yield from _torch(kit)
    yield from _mps()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _torch(kit: Kit) -> Iterator[Finding]:
    if kit.engine_python is None:
        yield skipped("PyTorch", "no interpreter with PyTorch was named")
        return
    code, text = output_of([str(kit.engine_python), "-c", _TORCH], _TORCH_LIMIT_S)
    if code:
        yield Finding("PyTorch", Status.FAILED, "it cannot be imported", detail=text)
        return
    versions = json.loads(text.splitlines()[-1])
    words = "" if versions["cuda"] else "it finds no CUDA"
    yield judged("PyTorch", versions["cuda"] or kit.false_library is not None, words, **versions)
    code, text = output_of([str(kit.engine_python), "-c", "import transformers; print(transformers.__version__)"],
                           _TORCH_LIMIT_S)  # fmt: skip
    yield judged("Transformers", code == 0, text.strip()[-200:])


def _mps() -> Iterator[Finding]:
    """The state of MPS, which is never changed: its daemon, and the folder of its pipes."""
    code, text = output_of(["ps", "-eo", "pid,comm"], _LIMIT_S)
    running = [line.strip() for line in text.splitlines() if "nvidia-cuda-mps" in line] if code == 0 else []
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # noqa: S108 - CUDA's own default
    yield noted("MPS", ", ".join(running) or "no daemon runs", pipes=pipes, pipes_exist=os.path.exists(pipes))  # noqa: PTH110
