"""A real model server end to end: manifest, placement, agent, gateway, the official client.

`transformers` must be on the search path; its own interpreter, beside it, makes the model.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError

from engines.deployed import apply, gpuward, openai_client
from support.processes.up_process import Up

MODEL_MAKER = Path(__file__).parents[1] / "support" / "builders" / "tiny_llama.py"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine = shutil.which("transformers")
    assert engine is not None, "transformers is not on the search path: run `make test-engines`"
    folder = tmp_path_factory.mktemp("models") / "tiny-llama"
    python = Path(engine).with_name("python")
    subprocess.run([python, MODEL_MAKER, folder], check=True, timeout=180, capture_output=True)
    return folder


@pytest.fixture
def up(data_dir: Path) -> Iterator[Up]:
    with Up(data_dir, "--agents", "1", "--port", "0") as running:
        running.wait_until_ready()
        yield running
        code, _ = running.stop()
        assert (code, running.leftovers()) == (0, [])


def test_a_tiny_llama_on_cpu_answers_the_official_client(up: Up, tiny_llama: Path) -> None:
    status = apply(
        up,
        {
            "kind": "Deployment", "name": "tiny", "engine": "transformers", "model": f"path:{tiny_llama}",
            "args": {"device": "cpu"}, "drain_time": "5s",
        },
    )  # fmt: skip
    assert status["phase"] == "running"
    assert [(c["kind"], c["memory_mib"] > 1000) for c in status["claims"]] == [("host", True)]
    (engine,) = up.engines()
    with openai_client(up) as client:
        assert [m.id for m in client.models.list()] == ["tiny"]
        messages: Any = [{"role": "user", "content": "Say something."}]
        whole = client.chat.completions.create(model="tiny", messages=messages, max_tokens=12, temperature=0)
        assert whole.usage is not None
        assert 1 <= whole.usage.completion_tokens <= 12
        text = whole.choices[0].message.content
        assert text
        chunks = list(
            client.chat.completions.create(model="tiny", messages=messages, max_tokens=12, temperature=0, stream=True)
        )
        assert len(chunks) > 2
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
        assert client.completions.create(model="tiny", prompt="Once", max_tokens=4).choices[0].text
        with pytest.raises(NotFoundError):
            client.chat.completions.create(model="unknown", messages=messages)
        with pytest.raises(BadRequestError):  # the engine's own refusal is passed on
            client.completions.create(model="tiny", prompt=[1, 2], max_tokens=4)
        gpuward(up, "delete", "--wait", "tiny")
        assert not engine.is_running()
        with pytest.raises(NotFoundError):
            client.chat.completions.create(model="tiny", messages=messages)
    assert up.engines() == []


def test_on_a_gpu_it_claims_what_its_tensors_need(up: Up, tiny_llama: Path) -> None:
    status = apply(
        up, {"kind": "Deployment", "name": "shared", "engine": "transformers", "model": f"path:{tiny_llama}"}
    )
    gpu, host = status["claims"]
    tensors_mib = (tiny_llama / "model.safetensors").stat().st_size / 2**20
    assert (gpu["kind"], gpu["exclusive"], host["kind"]) == ("gpu", False, "host")
    assert gpu["memory_mib"] == pytest.approx(2048 + 1.2 * tensors_mib, abs=2)
    with openai_client(up) as client:
        messages: Any = [{"role": "user", "content": "Hello"}]
        assert client.chat.completions.create(model="shared", messages=messages, max_tokens=4).choices
