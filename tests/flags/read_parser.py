"""Reads one server's real argument parser, in an environment of its own, and parses argument lists with it.

    read_parser.py FOLDER < argument lists > answer

FOLDER holds the server's Python files. Standard input is a JSON list of argument lists. The answer is JSON:
`options`, one for each destination with its spellings; `parsed`, for each list the destinations that it sets, or the
parser's own error.
"""

import argparse
import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import stand_ins


def parser_of(folder: Path) -> argparse.ArgumentParser:
    """The parser of the server in a folder."""
    sys.path.insert(0, str(folder))
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # a platform that needs no driver; flags are the same on all
    stand_ins.install()
    if (folder / "sglang").is_dir():
        from sglang.srt.server_args import ServerArgs  # noqa: PLC0415

        found = argparse.ArgumentParser(prog="sglang serve")
        ServerArgs.add_cli_args(found)
        return found
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser  # noqa: PLC0415
    except ModuleNotFoundError:
        from vllm.entrypoints.openai.cli_args import (  # noqa: PLC0415
            make_arg_parser,
        )
    made: argparse.ArgumentParser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    return made


def options(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """One for each destination: its spellings, those that switch it off, and whether it takes a value."""
    found: dict[str, dict[str, Any]] = {}
    for spelling, action in sorted(parser._option_string_actions.items()):
        one = found.setdefault(action.dest, {"dest": action.dest, "names": [], "switch": action.nargs == 0})
        one["names"].append(spelling)
    return list(found.values())


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> dict[str, Any]:
    """The destinations that a list sets, and their values; or the error."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            found = vars(parser.parse_args(argv))
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1]}
    return {"set": {name: value for name, value in found.items() if value != parser.get_default(name)}}


def main() -> None:
    """Answers on standard output, and leaves what the server prints to standard error."""
    answer, sys.stdout = sys.stdout, sys.stderr
    parser = parser_of(Path(sys.argv[1]))
    lists = json.load(sys.stdin)
    found = {"options": options(parser), "parsed": [parse(parser, argv) for argv in lists]}
    json.dump(found, answer, default=str)


if __name__ == "__main__":
    main()
