"""The model servers that run here: where each is, what installs it, what it serves and what it can show."""

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engines import build_llama_server, install_vllm_cpu
from support.builders.tiny_gguf import make_tiny_gguf

ROOT = Path(__file__).parents[2]
_LLAMA_SERVER = build_llama_server.built((ROOT / "locks/flags-servers.txt").read_text(), ROOT / ".engines")
_VLLM = install_vllm_cpu.program_of((ROOT / "locks/vllm-cpu.txt").read_text(), ROOT / ".engines")
_TRANSFORMERS = ROOT / ".venv-engines/bin/transformers"
CONTEXT = 4096
DRAIN_TIME = "5m"  # where the cores are shared by ten, a stream of seconds takes a minute; beyond this it is cut


@dataclass(frozen=True)
class RealEngine:
    """One engine.

    Attributes:
        name: in manifests.
        program: its executable.
        installed: whether it is there to the end.
        install: the command that installs it.
        make_model: writes a tiny model into a folder; returns a manifest's `model`.
        fields: what its manifest has besides.
        endless: what a request has besides, so that only its number of tokens ends it.
        refused: fields of a request that it refuses.
        gauges: whether it has those of requests in flight.
        cache_gauge: whether it has one of the share of its cache that is in use.
        named: whether a flag sets the model's name in its answers.
        parts: names of further processes, without any of which it ends, as the kernel cuts them.
        marks: of its tests.
    """

    name: str
    program: Path
    installed: bool
    install: str
    make_model: Callable[[Path], str]
    fields: Mapping[str, Any]
    endless: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, Any] = field(default_factory=lambda: {"response_format": {"type": "no such type"}})
    gauges: bool = True
    cache_gauge: bool = True
    named: bool = True
    parts: tuple[str, ...] = ()
    marks: tuple[pytest.MarkDecorator, ...] = ()

    def manifest(self, model: str, **args: Any) -> dict[str, Any]:
        """A deployment `tiny` of this model."""
        fields = {**self.fields, "args": {**self.fields["args"], **args}}
        return {"kind": "Deployment", "name": "tiny", "engine": self.name, "model": model, **fields}


def _gguf(folder: Path) -> str:
    return f"gguf:{make_tiny_gguf(folder / 'tiny.gguf')}"


def _llama_made_by(program: Path) -> Callable[[Path], str]:
    """The interpreter beside the program has what making the model needs."""

    def make(folder: Path) -> str:
        maker = ROOT / "tests/support/builders/tiny_llama.py"
        subprocess.run([program.with_name("python"), maker, folder], check=True, timeout=180, capture_output=True)
        for file in folder.iterdir():
            file.chmod(0o644)  # weights are written for their owner alone; engines may run as others
        return f"path:{folder}"

    return make


TRANSFORMERS = RealEngine(
    name="transformers",
    program=_TRANSFORMERS,
    installed=(_TRANSFORMERS.parents[1] / ".ready").exists(),
    install="make test-engines",
    make_model=_llama_made_by(_TRANSFORMERS),
    fields={"args": {"device": "cpu"}, "drain_time": DRAIN_TIME},
    refused={"no_such_field": 1},
    gauges=False,
    cache_gauge=False,
    named=False,  # its answers carry the model's own name
)
LLAMA_CPP = RealEngine(
    name="llama-cpp",
    program=_LLAMA_SERVER,
    installed=_LLAMA_SERVER.exists(),
    install="make test-engines-all",
    make_model=_gguf,
    fields={
        "args": {"n-gpu-layers": 0, "ctx-size": 32 * CONTEXT, "parallel": 2, "cache-ram": 16}, "drain_time": DRAIN_TIME,
    },
    endless={"ignore_eos": True},
    cache_gauge=False,  # builds from the middle of 2025 on have none
)  # fmt: skip
VLLM = RealEngine(
    name="vllm",
    program=_VLLM,
    installed=install_vllm_cpu.ready(_VLLM),
    install="make test-engines-all",
    make_model=_llama_made_by(_VLLM),
    # It bounds its cache by the variable, in GiB. Compiling would take minutes.
    fields={
        "args": {"max-model-len": CONTEXT, "enforce-eager": True}, "env": {"VLLM_CPU_KVCACHE_SPACE": "1"},
        "drain_time": DRAIN_TIME,
    },
    endless={"ignore_eos": True},
    parts=("VLLM::EngineCor",),
    marks=(pytest.mark.nightly,),
)  # fmt: skip
ENGINES = (TRANSFORMERS, LLAMA_CPP, VLLM)


def needs(engine: RealEngine) -> tuple[pytest.MarkDecorator, ...]:
    """The marks of a test of this engine: it is skipped where the engine is not installed."""
    reason = f"{engine.name} is not installed: {engine.install}"
    return (*engine.marks, pytest.mark.skipif(not engine.installed, reason=reason))
