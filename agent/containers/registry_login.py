"""The login that Docker's own command line has stored for a registry: `docker login`, run as the agent's user."""

import base64
import binascii
import os
from pathlib import Path
from typing import Final

import orjson

_HUB: Final = "https://index.docker.io/v1/"


def stored_login(registry: str) -> dict[str, str] | None:
    """User and password, or a token; None: there is none. Blocks for one small file."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        stored = orjson.loads((folder / "config.json").read_bytes()).get("auths", {})
        found = stored.get(_HUB if registry == "docker.io" else registry) or stored.get(f"https://{registry}") or {}
        if token := found.get("identitytoken"):
            return {"identitytoken": token}
        user, _, password = base64.b64decode(found["auth"]).decode().partition(":")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return None
    return {"username": user, "password": password}
