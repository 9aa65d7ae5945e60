"""The login that Docker's own command line has stored for a registry: `docker login`, run as the agent's user."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from agent.decide.registry_logins import file_login, has_none, helper_for, helper_login, server_of
from agent.program_output import output_of

_HELPER_LIMIT_S: Final = 10.0
_ANSWER_BYTES: Final = 65_536
_CONFIG_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Login:
    """What is known for a registry.

    Attributes:
        auth: user and password, or a token; None: there is none.
        trouble: why a stored one cannot be had, without any secret. Public images can be pulled all the same.
    """

    auth: dict[str, str] | None
    trouble: str = ""


async def stored_login(registry: str) -> Login:
    """The stored login. It asks the credential helper that the configuration names, if any."""
    config = await asyncio.to_thread(_read_config)
    try:
        helper = helper_for(config, registry)
    except ValueError as error:
        return Login(None, f"Docker's configuration: {error}")
    return Login(file_login(config, registry)) if helper is None else await _ask(helper, registry)


def _read_config() -> dict[str, Any]:
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        with (folder / "config.json").open("rb") as file:
            config = orjson.loads(file.read(_CONFIG_BYTES))
    except (OSError, RuntimeError, ValueError):  # Path.home() raises RuntimeError for a user without a home
        return {}
    return config if isinstance(config, dict) else {}


async def _ask(helper: str, registry: str) -> Login:
    program = f"docker-credential-{helper}"
    text, failed = await output_of(
        [program, "get"], _HELPER_LIMIT_S, given=server_of(registry).encode(), stderr=False, most_bytes=_ANSWER_BYTES
    )
    if failed:
        return Login(None, "" if has_none(text) else f"{program}: {failed}")
    try:
        return Login(helper_login(orjson.loads(text)))
    except orjson.JSONDecodeError:
        return Login(None, f"{program}: its answer is not valid JSON")
    except ValueError as error:
        return Login(None, f"{program}: {error}")
