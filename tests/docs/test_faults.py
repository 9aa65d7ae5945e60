"""The table of faults: every case is there, and every test that it names exists."""

import ast
import re
from functools import cache

from support.pages import DOCS, ROOT

CASES = 50
# Cases without a test. One that gets its test leaves this list; a new gap is put here on purpose.
GAPS: set[int] = set()
_ROW = re.compile(r"\| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_NO_TEST = "no test yet: "


def rows() -> dict[int, str]:
    """The last column, by number."""
    text = (DOCS / "faults.md").read_text(encoding="utf-8")
    found = [(int(row[1]), row[4]) for row in map(_ROW.fullmatch, text.splitlines()) if row]
    assert [number for number, _ in found] == list(range(1, CASES + 1))
    return dict(found)


@cache
def functions(file: str) -> frozenset[str]:
    if not (ROOT / file).is_file():
        return frozenset()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_case_names_tests_that_exist_or_says_why_it_has_none() -> None:
    for number, cell in rows().items():
        named = _TEST.findall(cell)
        assert [f"{file}::{name}" for file, name in named if name not in functions(file)] == [], number
        assert _TEST.sub("", cell).strip() == "" or (not named and len(cell) > len(_NO_TEST) + 40), number
        assert bool(named) is not cell.startswith(_NO_TEST), number


def test_the_known_gaps_are_those_that_the_page_tells() -> None:
    assert {number for number, cell in rows().items() if cell.startswith(_NO_TEST)} == GAPS
    words = {4: "Four cases have", 3: "Three cases have", 2: "Two cases have", 1: "One case has"}
    said = words.get(len(GAPS))
    assert said is None or f"{said} no test yet." in (DOCS / "faults.md").read_text(encoding="utf-8")
