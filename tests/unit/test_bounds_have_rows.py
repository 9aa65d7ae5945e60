"""Each bound in the code has a row in SECURITY.md: which principal it holds for, what it may cost, and where."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("agent", "controller", "gateway", "http1", "schemas")  # `cli` runs for its user alone
# How a constant that bounds the cost of a caller is named.
FORM: Final = re.compile(r"_?(MAX|MOST|BURST)(_|$)|\w+_(AT_ONCE|PER_S|PER_MINUTE|A_MINUTE|BURST|MOST|MAX)$")
NAMED: Final = frozenset(re.findall(r"`([\w./]+)`", (ROOT / "SECURITY.md").read_text(encoding="utf-8")))


def bounds(source: str) -> Iterator[str]:
    """The names of a module's constants that are bounds. A set of members is none."""
    for statement in ast.parse(source).body:
        match statement:
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=value)
                | ast.Assign(targets=[ast.Name(id=name)], value=value)
            ):
                if value is not None and FORM.match(name) and not any(isinstance(n, ast.Set) for n in ast.walk(value)):
                    yield name
            case _:
                pass


def has_row(module: str) -> bool:
    folders = [f"{folder}/" for folder in Path(module).parents if len(folder.parts) > 1]  # no package as a whole
    return module in NAMED or any(folder in NAMED for folder in folders)


def test_every_module_with_a_bound_is_named() -> None:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    found = {file.relative_to(ROOT).as_posix(): list(bounds(file.read_text(encoding="utf-8"))) for file in files}
    assert sum(map(len, found.values())) > 200, "the form finds them"
    missing = {module: names for module, names in found.items() if names and not has_row(module)}
    assert missing == {}, "write a row in SECURITY.md: who may cause it, what it may cost, and this module"


def test_every_module_that_is_named_exists() -> None:
    named = [name for name in sorted(NAMED) if name.split("/")[0] in PACKAGES and "/" in name]
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_form_finds_bounds_and_nothing_else() -> None:
    source = "_MOST: Final = 3\nREADS_PER_S = 2.0\nFILES_AT_ONCE: int\nALMOST = 1\n_AT_ONCE = {1}\nX_A_MINUTE = 9\n"
    assert list(bounds(source)) == ["_MOST", "READS_PER_S", "X_A_MINUTE"]
