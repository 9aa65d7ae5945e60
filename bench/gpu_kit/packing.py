"""The distribution of the kit's files over folders. Pure."""

from collections.abc import Mapping
from typing import Final

FOLDER: Final = "part-{}"


def pack(fixed: int, sizes: Mapping[str, int], most: int) -> dict[str, str]:
    """The folder of each file, so that none holds more than `most` bytes. The largest files are placed first.

    `fixed`: bytes that the first folder has already. `sizes`: bytes of the files.

    Raises:
        ValueError: a file is too large for any folder, or the first folder is too full already.
    """
    if fixed > most:
        raise ValueError(f"the first folder would hold {fixed} bytes, more than {most}")
    filled = [fixed]
    placed = {}
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        if size > most:
            raise ValueError(f"{name}: has {size} bytes, more than a folder may hold ({most})")
        at = next((n for n, used in enumerate(filled) if used + size <= most), len(filled))
        if at == len(filled):
            filled.append(0)
        filled[at] += size
        placed[name] = FOLDER.format(at + 1)
    return placed
