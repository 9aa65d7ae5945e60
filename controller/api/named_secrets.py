"""Warns of secrets that a deployment names and cannot have now: its instances would stay pending without them."""

from collections.abc import Mapping
from typing import Final

from controller.store.access.secret_keys import NO_KEYS, SecretKeys
from controller.store.access.secrets import closed_secrets, secrets_of
from controller.store.core.database import Reader
from schemas.manifest.deployment import DeploymentSpec

_MOST_WARNINGS: Final = 20


async def named_secret_warnings(
    connection: Reader, specs: Mapping[str, DeploymentSpec], keys: SecretKeys = NO_KEYS, *, named: bool = True
) -> list[str]:
    """One line for each variable whose secret does not exist or cannot be read.

    Args:
        connection: to read from.
        specs: by the name of the deployment.
        keys: of this controller.
        named: lines begin with the deployment, since several are checked.
    """
    references = [
        (deployment, variable, secret)
        for deployment, spec in specs.items()
        for variable, secret in secrets_of(spec).items()
    ]
    if not references:
        return []
    closed = await closed_secrets(connection, {secret for *_, secret in references}, keys)
    lines = [
        f"{f'{deployment}: ' if named else ''}env.{variable}: {closed[secret]}; instances stay pending without it"
        for deployment, variable, secret in references
        if secret in closed
    ]
    more = len(lines) - _MOST_WARNINGS
    return lines if more <= 0 else [*lines[:_MOST_WARNINGS], f"{more} more variables name secrets that cannot be had"]
