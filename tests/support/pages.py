"""The pages of the documentation as tests read them: fences, links and headings of Markdown."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
DESIGN: Final = DOCS / "design"
_NOTE: Final = re.compile(r"<!-- (not run|not a manifest)(?:: (.+))? -->")
_FENCE: Final = re.compile(r"```(\w*)")


@dataclass(frozen=True, slots=True)
class Fence:
    """A block of code. `note` is the comment on the line above it that takes it out of a test: kind and reason."""

    page: Path
    line: int
    language: str
    text: str
    note: tuple[str, str] | None

    @property
    def where(self) -> str:
        """For messages and test ids."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page, those outside docs/ included."""
    names = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "SECURITY.md")
    outside = [ROOT / name for name in names]
    return [*outside, *sorted(DOCS.glob("*.md")), *sorted(DESIGN.glob("*.md"))]


def fences(page: Path, *languages: str) -> Iterator[Fence]:
    """The blocks of code in these languages, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    begun: tuple[int, str] | None = None
    for number, line in enumerate(lines, 1):
        if begun is None and (opening := _FENCE.fullmatch(line)):
            begun = (number, opening[1])
        elif begun is not None and line == "```":
            first, language = begun
            note = _NOTE.fullmatch(lines[first - 2]) if first > 1 else None
            text = "\n".join(lines[first : number - 1]) + "\n"
            if language in languages:
                yield Fence(page, first, language, text, (note[1], note[2] or "") if note else None)
            begun = None


def prose(page: Path) -> str:
    """The page without its blocks of code and its comments; lines keep their numbers."""
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text)


def links(page: Path) -> Iterator[str]:
    """The targets of all links."""
    without_code = re.sub(r"`[^`\n]*`", "", prose(page))
    for found in re.finditer(r"\]\(([^)\s]+)\)", without_code):
        yield found[1]


def anchors(page: Path) -> set[str]:
    """The anchors of the headings that code hosts and mkdocs agree on."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
        on_hosts, on_site = plain.replace(" ", "-"), re.sub(r"[\s-]+", "-", plain)
        if on_hosts == on_site:
            found.add(on_site)
    return found
