"""What real engines are found to need, from their models' files, against what they take."""

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.host_inventory.engine_builds import llama_cpp_lacks
from controller.domain.model_facts import facts_from_json
from controller.engines.base import Launch
from controller.engines.estimates.llama_cpp_memory import Model
from controller.engines.registry import engine_for, validate
from controller.model_files.analysis import model_facts
from engines.deployed import Deployed, until
from engines.table import LLAMA_CPP, TRANSFORMERS, RealEngine, needs
from schemas.engine_builds import LLAMA_CPP_ON_CPU
from support.builders.engine_specs import spec
from support.processes.up_process import Up

pytestmark = pytest.mark.timeout(400)


def needing(engine: RealEngine) -> Any:
    """The parameter of a test of one engine."""
    return pytest.param(engine, marks=needs(engine), id=engine.name)


@pytest.mark.parametrize("engine", [needing(TRANSFORMERS)])
def test_on_a_gpu_it_claims_what_its_tensors_need_and_on_the_host_none(
    up: Up, engine: RealEngine, models: Iterator[Path]
) -> None:
    folder = next(models)
    manifest = engine.manifest(engine.make_model(folder))
    tensors_mib = (folder / "model.safetensors").stat().st_size / 2**20
    on_host, on_gpu = Deployed(up, engine, manifest), Deployed(up, engine, {**manifest, "name": "gpu", "args": {}})
    with on_host.client, on_gpu.client:
        for one in (on_host, on_gpu):
            one.run()
            assert one.answers()
        (host,) = on_host.status()["claims"]
        assert (host["kind"], host["memory_mib"] > 1000) == ("host", True)
        gpu, host = on_gpu.status()["claims"]
        assert (gpu["kind"], gpu["exclusive"], host["kind"]) == ("gpu", False, "host")
        assert gpu["memory_mib"] == pytest.approx(2048 + 1.2 * tensors_mib, abs=2)
        for one in (on_host, on_gpu):
            one.delete()


@pytest.mark.parametrize("engine", [needing(LLAMA_CPP)])
async def test_this_build_uses_no_gpu_and_says_so(engine: RealEngine) -> None:
    assert await llama_cpp_lacks(str(engine.program), os.environ) == (LLAMA_CPP_ON_CPU,)


_PRINTED = re.compile(r"(model|KV|compute) buffer size = +([\d.]+) MiB")


def _printed(engine: RealEngine, wanted: Any, folder: Path) -> dict[str, float]:
    """MiB that llama-server says it takes at the load, by kind."""
    validate(wanted)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    argv = engine_for(wanted).process(wanted, Launch(context=4096, sequences=2)).argv
    log = folder / "log"
    with log.open("w") as out:
        line = [str(engine.program), *(part.replace("{port}", port) for part in argv[1:]), "--verbosity", "4"]
        process = subprocess.Popen(line, stdout=out, stderr=subprocess.STDOUT)
        try:
            until(lambda: "listening on http" in log.read_text() or process.poll() is not None, "it listens")
        finally:
            process.kill()
            process.wait(20)
    found: dict[str, float] = {}
    for kind, size in _PRINTED.findall(log.read_text()):
        found[kind] = found.get(kind, 0.0) + float(size)
    assert set(found) == {"model", "KV", "compute"}, log.read_text()[-3000:]
    return found


@pytest.mark.parametrize(
    "args", [{}, {"ctx-size": 65536, "parallel": 1}, {"cache-type-k": "q8_0", "cache-type-v": "q8_0"}]
)
@pytest.mark.parametrize("engine", [needing(LLAMA_CPP)])
def test_what_it_takes_is_what_was_estimated(tmp_path: Path, engine: RealEngine, args: dict[str, Any]) -> None:
    model = engine.make_model(tmp_path)
    wanted = spec("llama-cpp", model=model, args={"n-gpu-layers": 0, "ctx-size": 8192, "parallel": 2} | args)
    printed = _printed(engine, wanted, tmp_path)
    facts = facts_from_json(model_facts({"gguf": model.removeprefix("gguf:")}))
    context = wanted.args["ctx-size"] // wanted.args["parallel"]
    parts = Model(wanted, facts, None).share(1, context, wanted.args["parallel"]).parts  # as on a GPU
    assert parts["weights"] == pytest.approx(printed["model"], abs=1.1)
    assert parts["cache"] == pytest.approx(printed["KV"], rel=0.02, abs=1.1)
    assert printed["compute"] * 0.7 - 2 <= parts["compute"] <= printed["compute"] * 1.6 + 4
