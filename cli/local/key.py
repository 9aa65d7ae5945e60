"""The verb `key`: besides what the API does, `reset`, which works on the controller's data and needs no key."""

from pathlib import Path
from typing import Annotated

import typer

from cli.errors import CliError
from cli.local.options import missing_library
from cli.local.settings import validated
from cli.runner import complain
from cli.verbs import access

app = typer.Typer()
app.add_typer(access.key, name="key")


@access.key.command("reset")
def reset_key(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The controller's data folder. Default: as for `controller`.")
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option("--database-url", help="URL of the controller's database (prefer GPUWARD_DATABASE_URL)."),
    ] = None,
) -> None:
    """Create a key of an administrator on the controller's host, and write it to client.env in the data folder.

    Works while the controller runs and while it is stopped. Other keys stay valid.
    """
    try:
        from controller.key_reset import KeyResetError  # noqa: PLC0415 - client verbs start without it
        from controller.key_reset import reset_key as reset  # noqa: PLC0415 - as above
        from controller.settings import ControllerSettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(missing_library(error, "controller"))
    settings = validated(ControllerSettings, data_dir=data_dir, database_url=database_url)
    try:
        file = reset(settings)
    except KeyResetError as error:
        complain(CliError(str(error)))
    print(f"key of an administrator written to {file}")
