"""SQL text stands in `store/` and in `runtime/lease.py` alone."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import controller

ROOT = Path(controller.__file__).parent
HOME = ("store/", "runtime/lease.py")
EXCEPTIONS = {
    ("runtime/feed.py", "SELECT 1"): "probes the listening connection, which is outside the store's pool",
}
SQL = re.compile(
    r"""\b(?: select\b.+\bfrom | select\s+(?:[\d$*(] | \w+\() | insert\s+into | delete\s+from
          | update\s+\w+\s+(?:\w+\s+)?set\b[^=]*= | with\s+\w+\s+as\s+(?:materialized\s*)?\(
          | lock\s+table | truncate\s+\w+ | set\s+local
          | (?:create|drop|alter)\s+(?:table|index|trigger|function) | pg_\w+\( )
      | ^\s*(?:listen|notify|unlisten)\s+\w+\s*$""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


def texts(source: str) -> Iterator[str]:
    """All string constants but docstrings."""
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def sql_in(source: str) -> list[str]:
    return [text for text in texts(source) if SQL.search(text)]


def test_sql_is_recognised() -> None:
    statements = (
        "select 1", "select pg_notify($1, $2)", "select a, b\nfrom t", "insert into t values (1)", "LISTEN gpuward",
        "update t x set a = 1", "delete from t", "with x as materialized (select 1)", "lock table t in share mode",
    )  # fmt: skip
    assert [text for text in statements if not sql_in(f"query = {text!r}")] == []
    assert sql_in('''
        """Select one from these."""
        message = "select another port", "with room as needed", "update it and set a limit"
        '''.replace("\n        ", "\n")) == []  # fmt: skip


def test_sql_stands_in_the_store_and_the_lease() -> None:
    found = {
        (path, text.strip())
        for file in sorted(ROOT.rglob("*.py"))
        if not (path := file.relative_to(ROOT).as_posix()).startswith(HOME)
        for text in sql_in(file.read_text(encoding="utf-8"))
    }
    assert found - EXCEPTIONS.keys() == set(), "move it to controller/store, or name it above with its reason"
    assert EXCEPTIONS.keys() - found == set(), "an exception that matches nothing must go"
