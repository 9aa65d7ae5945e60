"""A path that an operator types reveals nothing of the controller's disk but whether a model lies there."""

import asyncio
import json
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller.leader.analyses import ModelCache, analyse_now
from controller.model_files.analysis import model_facts
from controller.runtime.child import ChildError
from schemas.manifest.deployment import DeploymentSpec

OTHER = 65_534
HUGE = 2**40
STEP_S = 0.5
SLACK_S = 0.3


def absent(_: Path) -> None:
    pass


def empty_folder(path: Path) -> None:
    path.mkdir()


def other_folder(path: Path) -> None:
    path.mkdir()
    for name, text in (("notes.txt", "x"), ("data.bin", "x" * 1000), ("other.onnx", "x"), ("index.json", "{}")):
        (path / name).write_text(text)


def other_config(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text('{"auths": {}}')
    (path / "pytorch_model.bin").write_text("x" * 1000)


def broken_config(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{")


def huge_config(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{}")
    os.truncate(path / "config.json", HUGE)


def false_weights(path: Path) -> None:
    path.mkdir()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"x" * 100)


def false_index(path: Path) -> None:
    path.mkdir()
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../secret"}}')


def file(path: Path) -> None:
    path.write_text("x")


def huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, HUGE)


def closed_folder(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    path.chmod(0)


def closed_file(path: Path) -> None:
    path.write_bytes(b"GGUF")
    path.chmod(0)


def closed_above(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.mkdir()
    path.parent.chmod(0)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder_of_fifos(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "config.json")
    os.mkfifo(path / "model.safetensors")


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path)


def broken_link(path: Path) -> None:
    path.symlink_to("nothing")


def full_folder(path: Path) -> None:
    path.mkdir()
    for number in range(20_001):
        (path / f"{number}").touch()


KINDS = (
    absent, empty_folder, other_folder, other_config, broken_config, huge_config, false_weights, false_index, file,
    huge_file, closed_folder, closed_file, closed_above, fifo, folder_of_fifos, device, circle, broken_link,
)  # fmt: skip


def linked(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def made(path: Path) -> None:
        target = path.with_name(f"target{path.suffix}")
        path.symlink_to(target)
        make(target)  # it may close the folder

    made.__name__ = f"link_to_{make.__name__}"
    return made


ALL = (*KINDS, *map(linked, KINDS))


@contextmanager
def as_another_account() -> Iterator[None]:
    """Root reads all, whatever its mode."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(OTHER)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path("/var/tmp") / f"gpuward-concealed-{os.getpid()}-{time.monotonic_ns()}"  # noqa: S108 - all may pass
    folder.mkdir(mode=0o755)
    (folder / "above").mkdir(mode=0o755)
    yield folder / "above"
    subprocess.run(["/bin/chmod", "-R", "u+rwX", folder], check=True, timeout=10)
    shutil.rmtree(folder)


def answer(payload: dict[str, Any], path: Path) -> tuple[str, str, bool]:
    """What comes of an analysis: type, text without the path, and whether it is tried again."""
    with as_another_account():
        try:
            return ("read", json.dumps(model_facts(payload)), False)
        except Exception as error:  # noqa: BLE001 - whatever it is, a caller would see it
            text = str(error).replace(str(path), "PATH")
            return (type(error).__name__, text, bool(getattr(error, "retryable", False)))


@pytest.fixture(scope="module", autouse=True)
def loaded() -> None:
    """Imported before the account changes, which may not read them."""
    answer({"gguf": "/none.gguf"}, Path("/none.gguf"))


@pytest.mark.parametrize("form", ["path", "gguf", "path.gguf", "adapter", "draft"])
@pytest.mark.parametrize("make", ALL, ids=lambda make: make.__name__)
def test_paths_without_a_model_have_one_answer(
    place: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None], form: str
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("controller.model_files.concealed.time.sleep", slept.append)
    path = place / ("x.gguf" if "gguf" in form else "x")
    make(path)
    payloads: dict[str, Callable[[Path], dict[str, Any]]] = {
        "path": lambda at: {"path": str(at)},
        "path.gguf": lambda at: {"path": str(at)},
        "gguf": lambda at: {"gguf": str(at)},
        "adapter": lambda at: {"path": str(_model(place)), "adapters": [{"path": str(at)}]},
        "draft": lambda at: {"path": str(_model(place)), "draft": {"path": str(at)}},
    }
    if make.__name__.endswith("closed_above") and form in ("adapter", "draft"):
        pytest.skip("the model is below that folder, too")
    found = answer(payloads[form](path), path)
    nothing = place / ("none.gguf" if "gguf" in form else "none")
    assert found == answer(payloads[form](nothing), nothing)
    assert found[2]
    assert len(slept) == 2, "both waited"


@pytest.mark.parametrize("form", ["path", "draft"])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_a_way_back_from_a_path_to_a_model_tells_nothing_of_the_path(
    place: Path, make: Callable[[Path], None], form: str
) -> None:
    if make is closed_above:
        pytest.skip("the model is below that folder, too")
    model = _model(place)
    make(place / "x")
    path = f"{place}/x/../model"
    payload = {"path": path} if form == "path" else {"path": str(model), "draft": {"path": path}}
    assert answer(payload, model)[0] == "read"


def _model(place: Path) -> Path:
    model = place / "model"
    if not model.exists():
        model.mkdir(mode=0o755)
        header = json.dumps({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
        (model / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"1234")
        (model / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    return model


def test_a_model_is_read_and_what_is_wrong_with_it_is_told(place: Path) -> None:
    model = _model(place)
    assert answer({"path": str(model)}, model)[0] == "read"
    (model / "model.safetensors").unlink()
    assert "holds no weights" in answer({"path": str(model)}, model)[1]


@pytest.mark.parametrize("make", [absent, full_folder], ids=lambda make: make.__name__)
def test_the_answer_takes_whole_steps(place: Path, make: Callable[[Path], None]) -> None:
    path, nothing = place / "x", place / "none"
    make(path)
    began = time.monotonic()
    found = answer({"path": str(path)}, path)
    assert (time.monotonic() - began) % STEP_S < SLACK_S
    assert found == answer({"path": str(nothing)}, nothing)


async def test_the_log_has_the_reason_and_the_caller_has_not(place: Path) -> None:
    texts = set()
    for make, reason in ((absent, "No such file"), (file, "Not a directory"), (broken_config, "holds no weights")):
        path = place / make.__name__
        make(path)
        spec = DeploymentSpec.model_validate({"engine": "vllm", "model": f"path:{path}"})
        with capture_logs() as logs:
            async with asyncio.timeout(60):
                with pytest.raises(ChildError) as refused:
                    await analyse_now(ModelCache(time.monotonic), spec)
        assert any(reason in line.get("error", "") for line in logs)
        assert reason not in str(refused.value)
        texts.add(refused.value.message.replace(str(path), "PATH"))
    assert len(texts) == 1
