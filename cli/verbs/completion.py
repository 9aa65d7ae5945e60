"""The verb `completion`. `cli.completion` and typer answer the requests of its scripts."""

from contextlib import redirect_stdout
from enum import StrEnum
from io import StringIO
from typing import Annotated

import typer

from cli.completion.shells import VARIABLE

app = typer.Typer()


class Shell(StrEnum):
    """The supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(ctx: typer.Context, shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the script with which a shell completes verbs and live names.

    For bash put `source <(gpuward completion bash)` into ~/.bashrc; for zsh the same with zsh into ~/.zshrc, below
    compinit; for fish write the script to ~/.config/fish/completions/gpuward.fish.
    """
    from typer.completion import shell_complete  # noqa: PLC0415 - slow to import

    with redirect_stdout(StringIO()) as script:
        shell_complete(ctx.find_root().command, {}, "gpuward", VARIABLE, f"source_{shell.value}")
    print(script.getvalue().strip())  # zsh reads the first line
