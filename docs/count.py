"""Counts the written words of docs/: `python docs/count.py`.

A word is a run between blanks that has a letter or a digit. Headings and tables count. Not counted are blocks of code,
comments, pages that are generated (their third line says by what), and docs/design/.
"""

import re
from pathlib import Path
from typing import Final

DOCS: Final = Path(__file__).resolve().parent
MOST: Final = 20_000
_GENERATED: Final = "<!-- Written by `make "
_FENCE: Final = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->", re.DOTALL)


def words(text: str) -> int:
    """Written words of a page in Markdown."""
    prose = _COMMENT.sub("", _FENCE.sub("", text))
    return sum(any(map(str.isalnum, run)) for run in prose.split())


def written_pages() -> dict[str, int]:
    """Words of each written page, by file name."""
    texts = {page.name: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}
    return {name: words(text) for name, text in texts.items() if _GENERATED not in text}


def main() -> None:
    """Prints the pages, the longest first, and their sum."""
    pages = written_pages()
    for name, count in sorted(pages.items(), key=lambda page: -page[1]):
        print(f"{count:6} {name}")
    print(f"{sum(pages.values()):6} of at most {MOST}")


if __name__ == "__main__":
    main()
