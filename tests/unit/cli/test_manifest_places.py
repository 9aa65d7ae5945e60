"""Problems of manifests have file, line and document, whichever verb reads them."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.errors import CliError, RefusedError
from cli.manifest.files import Manifests, read_manifests
from cli.manifest.places import Places
from schemas.manifest.parse import parse_manifests
from schemas.manifest.problems import FieldProblem, join_path
from schemas.manifest.strict_yaml import read_documents
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


@pytest.mark.parametrize("number", ["[1].", "manifests[1]."])
@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_server_may_write_the_numbers_of_manifests_in_two_ways(gpuward, api, two, words, number):
    Path(two).write_text(TWO.replace("many", "1").replace("gpu_models: [H100]", "workers: [w]"))

    async def refuse(_request: Any) -> Any:
        problems = [{"path": f"{number}resources.gpus", "message": "has a fault"}]
        return refusal(422, "invalid", "the manifests are not valid", problems=problems)

    api.refuse = refuse
    assert f"  {two}:13, document 2: resources.gpus: has a fault\n" in gpuward(*words, "-f", two).stderr


def test_of_one_manifest_a_problem_has_its_line_and_those_of_the_request_have_none(gpuward, api, tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("kind: Deployment\nname: a\nengine: simulated\n")
    found = [
        ("manifests[0].engine", "e"), ("engine", "f"), ("", "g"), ("manifests", "h"), ("any_priority", "i"),
        ("apply", "j"),
    ]  # fmt: skip

    async def refuse(_request: Any) -> Any:
        problems = [{"path": path, "message": message} for path, message in found]
        return refusal(422, "invalid", "the body is not valid", problems=problems)

    api.refuse = refuse
    lines = gpuward("defrag", "--apply", "--any-priority", "-f", str(file)).stderr.splitlines()
    assert [line.strip() for line in lines if line.startswith("  ")] == [
        f"{file}:3: engine: e", f"{file}:3: engine: f", f"{file}:1: g", "manifests: h", "any_priority: i", "apply: j",
    ]  # fmt: skip


def test_many_problems_of_many_manifests_are_placed_at_once():
    labels = ", ".join(f"k{n}: v" for n in range(50))
    text = "---\n".join(f"kind: Deployment\nname: d{n}\nengine: simulated\nlabels: {{{labels}}}\n" for n in range(1000))
    manifests = Manifests()
    manifests.take("m.yaml", text, parse_manifests(text))
    before = time.process_time()
    with pytest.raises(RefusedError) as refused, manifests.located():
        raise RefusedError("not valid", "invalid", [(f"[{n}].labels.k49", "m") for n in range(100)])
    assert f"  m.yaml:{99 * 5 + 4}, document 100: labels.k49: m" in str(refused.value)
    assert time.process_time() - before < 20, "the file is read once, not for each problem"


def test_many_problems_of_one_large_mapping_are_placed_at_once():
    fields = [f"K{n}" for n in range(60_000)]
    places = Places("m.yaml", "env:\n" + "".join(f"  {field}: 1\n" for field in fields))
    assert places.line_of(FieldProblem("env.K0", "m"), 0) == "m.yaml:2: env.K0: m"
    before = time.process_time()
    for n in range(300):
        assert places.line_of(FieldProblem(f"env.{fields[n]}[0]", "m"), 0).startswith(f"m.yaml:{n + 2}: ")
    assert time.process_time() - before < 3, "the mapping is read once, not for each problem"


DOCUMENTS = st.sampled_from(
    ["null", "~", "Null", "NULL", "", "# nothing", '""', "''", '"null"', "nUll", "0", "text", "{}", "[]", "[null, 1]",
     "- null\n- x: 1", "kind: Deployment\nname: a", "{kind: Deployment}", "|\n  ~", ">\n"]
)  # fmt: skip


@given(st.lists(DOCUMENTS, min_size=1, max_size=6))
def test_each_manifest_has_the_number_that_the_parser_gives_it(documents: list[str]) -> None:
    """Each document has a line before it that shows where it is."""
    text = "".join(f"# {number}\n---\n{document}\n" for number, document in enumerate(documents))
    starts = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith("---")]
    kept = [n for n, document in enumerate(documents) for _ in items_of(document)]
    places = Places("m.yaml", text)
    for number, document in enumerate(kept):
        shown = places.line_of(FieldProblem("", "m"), number)
        line = int(re.match(r"m\.yaml:(\d+)", shown)[1])  # type: ignore[index]
        following = starts[document + 1] if document + 1 < len(starts) else len(text.splitlines()) + 1
        assert starts[document] <= line <= following
    assert places.line_of(FieldProblem("x", "m"), len(kept)) == "m.yaml: x: m", "there are no more"


def items_of(document: str) -> list[object]:
    """The manifests of a text with one document, as the parser counts them."""
    return [
        one for read in read_documents(f"---\n{document}\n") for one in (read if isinstance(read, list) else [read])
    ]


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
