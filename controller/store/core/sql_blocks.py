"""Files of named SQL statements: `-- name: text` begins one, and it ends with the next name or the file."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEAD: Final = re.compile(r"^-- (?P<name>[a-z_]+): (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SqlBlock:
    """One statement with its name and the text beside that."""

    name: str
    text: str
    query: str


def read_blocks(file: Path) -> tuple[SqlBlock, ...]:
    """The statements of a file, in order."""
    content = file.read_text(encoding="utf-8")
    heads = list(_HEAD.finditer(content))
    ends = [head.start() for head in heads[1:]] + [len(content)]
    return tuple(
        SqlBlock(head["name"], head["text"], content[head.end() : end].strip().rstrip(";"))
        for head, end in zip(heads, ends, strict=True)
    )
