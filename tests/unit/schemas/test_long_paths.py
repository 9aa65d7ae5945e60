"""Many values under one long key cost no more than they are long: their paths are not written out one by one."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from schemas.api.requests import PlanBody
from schemas.manifest import problems as unknown_keys_module
from schemas.manifest.parse import parse_manifest_objects
from schemas.manifest.problems import ManifestError
from schemas.manifest.strict_yaml import MAX_DEPTH, MAX_KEY, MAX_PATHS, read_documents, read_json
from support.growth import assert_in_line

MIB = 2**20
LONG = "k" * MAX_KEY
MANIFEST = {"kind": "Deployment", "name": "a", "engine": "simulated"}


def refusal(read: Callable[[], object]) -> str:
    with pytest.raises(ManifestError) as refused:
        read()
    (problem,) = refused.value.problems
    return str(problem)


def most_memory(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("read", [read_json, read_documents])
def test_values_under_a_long_key_take_little_memory(read: Callable[[str], object]) -> None:
    fitting = json.dumps({LONG: [0] * (MAX_PATHS // MAX_KEY * 9 // 10)})
    assert most_memory(lambda: read(fitting)) < 8 * MIB
    for text in (f'{{"{"k" * 100_000}":[{",".join("0" * 20_000)}]}}', json.dumps({LONG: [0] * 200_000})):
        assert most_memory(lambda text=text: refusal(lambda: read(text))) < 24 * MIB


@pytest.mark.parametrize(
    "fields",
    [{"env": {LONG: dict.fromkeys(map(str, range(80_000)), 0)}}, {"args": {LONG: [[[0]]] * 80_000}}],
    ids=["env", "args"],
)
def test_a_refusal_of_each_takes_no_copy_of_the_key_for_each(fields: dict[str, Any]) -> None:
    """Pydantic would hold the path of every value that it refuses, which no trace of Python's memory shows."""
    text = json.dumps([{**MANIFEST, **fields}])
    said = refusal(lambda: parse_manifest_objects(list(read_documents(text))))
    assert said == "has too many values under long keys; shorten the keys, or split it"


def test_a_key_has_a_bound() -> None:
    assert read_json(json.dumps({LONG: 0}))
    said = refusal(lambda: read_json(json.dumps({"a": [{f"{LONG}k": 0}]})))
    assert said == f"a[0]: a key has {MAX_KEY + 1} characters; write at most {MAX_KEY}"


def test_a_mebibyte_of_small_values_fits() -> None:
    assert read_json(json.dumps({"manifests": [{"args": {"a": [0] * 340_000}}]}))


def test_a_problem_still_has_its_whole_path() -> None:
    assert refusal(lambda: read_json('{"a": {"b": [0, {"c.d": [1e999]}]}}')) == (
        "a.b[1].c.d[0]: must be a finite number"
    )


def test_depth_is_counted_as_before() -> None:
    def nested(depth: int, inner: str) -> str:
        return "[" * depth + inner + "]" * depth

    assert read_json(nested(MAX_DEPTH, "0"))
    assert read_json(nested(MAX_DEPTH, "{}"))
    assert "nested deeper" in refusal(lambda: read_json(nested(MAX_DEPTH + 1, "0")))


def test_the_time_grows_with_the_values() -> None:
    def of(number: int) -> Callable[[], object]:
        text = json.dumps({"k" * (number // 10): [0] * number})
        return lambda: read_json(text)

    assert_in_line(of, 4_000)


def test_values_that_have_no_known_keys_are_not_looked_through_for_unknown_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    joined: list[str] = []
    monkeypatch.setattr(unknown_keys_module, "join_path", lambda base, step: joined.append(base) or f"{base}.{step}")
    body = {"manifests": [{}] * 1_000, "candidates": False, "more": 1}
    assert [problem.path for problem in unknown_keys_module.unknown_keys(PlanBody, body)] == [".more"]
    assert len(joined) == len(body)
