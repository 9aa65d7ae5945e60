"""Searches inputs of one target that break it, guided by the coverage of our code: drive.py TARGET OPTION...

The options are libFuzzer's, and folders of inputs: what reaches something new is added to the first of these. Exits
with 0 when nothing was found; else the input is in the file that the last line names.
"""

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Final

import atheris

ROOT: Final = Path(__file__).parents[2]


def dictionary(words: tuple[str, ...]) -> str:
    """libFuzzer's form: a quoted word on each line, its unusual bytes in hexadecimal."""
    coded = (word.encode("latin-1") if word.isascii() or max(word) < "\u0100" else word.encode() for word in words)
    return "".join('"' + "".join(f"\\x{byte:02x}" for byte in one) + '"\n' for one in coded if one)


def main() -> None:
    """Does not return: libFuzzer ends the process."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    name, *options = sys.argv[1:]
    packages = importlib.import_module("support.fuzz.targets").TARGETS[name].packages
    with atheris.instrument_imports(include=list(packages)):
        target = importlib.import_module(f"support.fuzz.{name}")
    with tempfile.NamedTemporaryFile("w", suffix=".dict") as words:
        words.write(dictionary(target.WORDS))
        words.flush()
        atheris.Setup([sys.argv[0], f"-dict={words.name}", *options], target.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
