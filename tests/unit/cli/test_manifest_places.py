"""Problems of manifests have file, line and document, whichever verb reads them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.errors import CliError
from cli.manifest.files import read_manifests
from cli.manifest.places import Places
from schemas.manifest.problems import FieldProblem, join_path
from support.standins.api import refusal

TWO = """\
# the first
kind: Deployment
name: chat
engine: simulated
---
kind: Deployment
name: embed
engine: simulated
placement:
  strategy: pack
  gpu_models: [H100]
resources:
  gpus: many
"""
READERS = (["apply"], ["plan"], ["diff"], ["defrag", "--plan"])


@pytest.fixture
def two(tmp_path: Path) -> str:
    file = tmp_path / "two.yaml"
    file.write_text(TWO)
    return str(file)


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_problem_has_file_line_and_document(gpuward, two, words):
    done = gpuward(*words, "-f", two)
    assert done.exit_code == (2 if words == ["diff"] else 1)
    lines = done.stderr.splitlines()
    (moved,) = [line for line in lines if "gpu_models" in line]
    assert moved.strip().startswith(f"{two}:11, document 2: placement.gpu_models: ")
    assert "did you mean 'resources.gpu_models'?" in moved
    assert any(line.strip().startswith(f"{two}:13, document 2: resources.gpus: ") for line in lines)


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_problem_that_only_the_server_finds_has_them_too(gpuward, api, tmp_path, words):
    (tmp_path / "a.yaml").write_text("kind: Deployment\nname: a\nengine: simulated\n")
    (tmp_path / "b.yaml").write_text(
        "kind: Deployment\nname: b\nengine: vllm\nmodel: hf:a/b\nargs:\n  x.y: 1\n  z: 2\n"
    )

    async def refuse(_request: Any) -> Any:
        problems = [{"path": "[1].args.x.y", "message": "is not allowed"}, {"path": "[0]", "message": "has a fault"}]
        return refusal(422, "invalid", "the manifests are not valid", problems=problems)

    api.refuse = refuse
    done = gpuward(*words, "-f", str(tmp_path))
    assert done.exit_code == (2 if words == ["diff"] else 1)
    assert f"  {tmp_path}/b.yaml:6: args.x.y: is not allowed" in done.stderr
    assert f"  {tmp_path}/a.yaml:1: has a fault" in done.stderr


def test_stdin_is_named(gpuward):
    done = gpuward("plan", "-f", "-", stdin="kind: Deployment\nname: a\nengine: simulated\nreplica: 2\n")
    assert "  stdin:4: replica: unknown key" in done.stderr


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('[{"kind": "Deployment",\n  "name": "a"},\n {"kind": "Deployment",\n  "sizes": 1}]', ":4, manifest 2"),
        ("kind: Deployment\nname: a\nreplicas:\n  min: 0\n", ":3"),  # max is missing
        ("---\n---\nkind: Deployment\nname: a\nx: 1\n", ":5, document"),
        ("kind: Deployment\nname: a\nengine: simulated\nplacement:\n  workers:\n  - a\n  - 1: 2\n", ":7"),
    ],
)  # fmt: skip
def test_other_forms(tmp_path, text, place):
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(CliError) as refused:
        read_manifests([str(file)])
    assert f"{file}{place}" in str(refused.value)


@pytest.mark.parametrize("text", ["a: [\n", "a: &x 1\nb: *x\n", "[" * 100_000, "kind: Deployment\n\tname: x\n"])
def test_a_text_that_cannot_be_read_is_still_refused(tmp_path, text):
    file = tmp_path / "m.yaml"
    file.write_text(text)
    with pytest.raises(CliError, match=r"m\.yaml is not valid"):
        read_manifests([str(file)])


KEYS = st.text(st.sampled_from("ab.[]0"), min_size=1, max_size=4)
TREES = st.recursive(
    st.integers(0, 9), lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3)
)


def leaves(value: Any, path: str, line_of: dict[str, int], lines: list[str], indent: str) -> None:
    """Writes a tree as YAML with a line for each key and each item; notes the line of each path."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for step, inner in pairs:
        at = join_path(path, step)
        head = indent + (f"{json.dumps(step)}:" if isinstance(step, str) else "-")
        plain = not inner or not isinstance(inner, dict | list)
        lines.append(f"{head} {inner}" if plain else head)
        line_of.setdefault(at, len(lines))
        if not plain:
            leaves(inner, at, line_of, lines, indent + "  ")


@given(st.dictionaries(KEYS, TREES, min_size=1, max_size=4))
def test_a_path_leads_to_a_line_that_has_its_last_key(tree: dict[str, Any]) -> None:
    line_of: dict[str, int] = {}
    lines: list[str] = []
    leaves(tree, "", line_of, lines, "")
    places = Places("m.yaml", "\n".join(lines))
    for path, line in line_of.items():
        shown = places.line_of(FieldProblem(path, "m"), 0)
        found = int(re.match(r"m\.yaml:(\d+): ", shown)[1])  # type: ignore[index]
        ambiguous = sum(1 for other in line_of if other != path and (other.startswith(path) or path.startswith(other)))
        assert found == line or (ambiguous and 1 <= found <= len(lines))
