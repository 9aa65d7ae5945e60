"""The written pages stay short enough to be read."""

import runpy
from typing import Any

from support.pages import DOCS

COUNT: dict[str, Any] = runpy.run_path(str(DOCS / "count.py"))
GENERATED: dict[str, Any] = runpy.run_path(str(DOCS / "generate"))


def test_words_are_counted_outside_of_code_and_comments() -> None:
    table, indented = "| a | - |\n|---|---|\n", "  ```sh\n  x\n  ```\n"
    text = f"# A title\n\n<!-- not run: a reason -->\n```sh\nsome code\n```\n{table}{indented}`b` (c)."
    assert COUNT["words"](text) == len(["A", "title", "a", "`b`", "(c)."])


def test_what_is_generated_does_not_count_and_all_else_does() -> None:
    made = {name for name in GENERATED["PAGES"] if name.endswith(".md")} | {"estimates.md"}
    assert set(COUNT["written_pages"]()) == {page.name for page in DOCS.glob("*.md")} - made


def test_the_written_pages_have_at_most_20000_words() -> None:
    pages = COUNT["written_pages"]()
    assert sum(pages.values()) <= COUNT["MOST"] == 20_000, pages
