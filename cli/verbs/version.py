"""The verb `version`."""

import typer

from schemas.version import __version__

app = typer.Typer()


@app.command()
def version() -> None:
    """Print the version of this program."""
    print(__version__)
