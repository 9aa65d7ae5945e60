"""The verb `completion`. What its scripts ask for is answered by `cli.completion`, and by typer."""

from enum import StrEnum
from typing import Annotated

import typer

app = typer.Typer()


class Shell(StrEnum):
    """A shell."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.")]) -> None:
    """Print the script with which a shell completes verbs and live names.

    For bash put `source <(gpuward completion bash)` into ~/.bashrc; for zsh the same with zsh into ~/.zshrc, below
    compinit; for fish write the script to ~/.config/fish/completions/gpuward.fish.
    """
    from typer._completion_shared import get_completion_script  # noqa: PLC0415 - slow to import

    print(get_completion_script(prog_name="gpuward", complete_var="_GPUWARD_COMPLETE", shell=shell.value))
