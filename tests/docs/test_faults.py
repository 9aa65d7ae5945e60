"""The table of faults: every case is there, and every test that it names exists."""

import ast
from functools import cache
from typing import Any

import yaml

from support.pages import DOCS, ROOT

CASES = 50
# Cases without a test. One that gets its test leaves this list; a new gap is put here on purpose.
GAPS: set[int] = set()


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load((DOCS / "faults.yaml").read_text(encoding="utf-8"))
    assert [one["number"] for one in found] == list(range(1, CASES + 1))
    return found


@cache
def functions(file: str) -> frozenset[str]:
    if not (ROOT / file).is_file():
        return frozenset()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_case_names_tests_that_exist_or_says_why_it_has_none() -> None:
    for one in rows():
        named = [test.split("::") for test in one["tests"]]
        assert [test for test in named if test[1] not in functions(test[0])] == [], one["number"]
        assert named or len(one["no_test_yet"]) > 40, one["number"]


def test_the_known_gaps_are_those_of_the_table() -> None:
    assert {one["number"] for one in rows() if not one["tests"]} == GAPS
