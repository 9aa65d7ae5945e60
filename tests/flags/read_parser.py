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


class Command:
    """The parser of `transformers serve`, which typer makes; it is asked as those of argparse are."""

    def __init__(self) -> None:
        import typer  # noqa: PLC0415
        from transformers.cli.serve import Serve  # noqa: PLC0415

        app = typer.Typer(add_completion=False)
        app.command(name="serve")(Serve)
        self._command = typer.main.get_command(app)

    def options(self) -> list[dict[str, Any]]:
        """As those of `options`."""
        named = (one for one in self._command.params if any(name.startswith("-") for name in one.opts))
        return [{"dest": one.name, "names": [*one.opts, *one.secondary_opts], "switch": one.is_flag} for one in named]

    def parse(self, argv: list[str]) -> dict[str, Any]:
        """As `parse`."""
        try:
            found = self._command.make_context("transformers serve", list(argv))
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            return {"error": error.format_message()}
        defaults = {one.name: one.get_default(found) for one in self._command.params}
        return {"set": {name: value for name, value in found.params.items() if value != defaults[name]}}


def parser_of(folder: Path) -> argparse.ArgumentParser | Command:
    """The parser of the server in a folder."""
    sys.path.insert(0, str(folder))
    os.environ["VLLM_TARGET_DEVICE"] = "cpu"  # a platform that needs no driver; flags are the same on all
    stand_ins.install()
    if (folder / "transformers").is_dir():
        stand_ins.transformers(folder / "transformers")
        return Command()
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


def options(parser: argparse.ArgumentParser | Command) -> list[dict[str, Any]]:
    """One for each destination: its spellings, those that switch it off, and whether it takes a value."""
    if isinstance(parser, Command):
        return parser.options()
    found: dict[str, dict[str, Any]] = {}
    for spelling, action in sorted(parser._option_string_actions.items()):
        one = found.setdefault(action.dest, {"dest": action.dest, "names": [], "switch": action.nargs == 0})
        one["names"].append(spelling)
    return list(found.values())


def parse(parser: argparse.ArgumentParser | Command, argv: list[str]) -> dict[str, Any]:
    """The destinations that a list sets, and their values; or the error."""
    if isinstance(parser, Command):
        return parser.parse(argv)
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
