"""The verb `secret`: besides what the API does, `proxy-key`, which reads the controller's keys and needs no API key."""

from pathlib import Path
from typing import Annotated

import typer

from cli.errors import CliError
from cli.local.options import missing_library
from cli.local.settings import validated
from cli.runner import complain
from cli.verbs import access

app = typer.Typer()
app.add_typer(access.secret, name="secret")


@access.secret.command("proxy-key")
def proxy_key(
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="The controller's data folder. Default: as for `controller`.")
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option("--key-file", help="File with the controller's keys (prefer GPUWARD_SECRETS_KEY_FILE)."),
    ] = None,
) -> None:
    """Print the keys for GPUWARD_PROXY_KEY_FILE of gateways on other hosts. Run it where the controller's keys are.

    Gateways open the secrets of agents' proxies with them, and nothing else.
    """
    try:
        from controller.proxy_key import SecretsKeyError, proxy_keys  # noqa: PLC0415 - client verbs start without it
        from controller.settings import ControllerSettings  # noqa: PLC0415 - as above
    except ImportError as error:
        complain(missing_library(error, "controller"))
    settings = validated(ControllerSettings, data_dir=data_dir, secrets_key_file=key_file)
    try:
        texts = proxy_keys(settings)
    except SecretsKeyError as error:
        complain(CliError(str(error)))
    if not texts:
        complain(
            CliError("no key of secrets is here; name its file with --key-file, or run this on the controller's host")
        )
    print("\n".join(texts))
