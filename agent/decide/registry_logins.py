"""Reads logins of registries in the configuration of `docker login`. Pure."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

_HUB: Final = "https://index.docker.io/v1/"
_HUB_NAMES: Final = (_HUB, "docker.io", "index.docker.io", "https://index.docker.io/v1", "https://index.docker.io")
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TOKEN: Final = "<token>"  # noqa: S105 - helpers' user name of a token
_NONE: Final = "credentials not found"  # the start of a helper's answer without a login


def server_of(registry: str) -> str:
    """The name under which logins of a registry are stored."""
    return _HUB if registry in _HUB_NAMES else registry


def _names_of(registry: str) -> tuple[str, ...]:
    """All names under which a login or helper of a registry may be stored, the usual one first."""
    return _HUB_NAMES if registry in _HUB_NAMES else (registry, f"https://{registry}")


def config_trouble(config: Any) -> str:
    """Why the configuration is invalid; empty if it is valid."""
    if not isinstance(config, dict):
        return "it is not a JSON object"
    odd = next((name for name in ("auths", "credHelpers") if not isinstance(config.get(name) or {}, dict)), None)
    return f"its `{odd}` is not a JSON object" if odd else ""


def helper_for(config: Mapping[str, Any], registry: str) -> str | None:
    """The helper that keeps the login: the registry's, else the general one; None: the file itself keeps it.

    Raises ValueError for an invalid name.
    """
    own = config.get("credHelpers")
    named = [own[name] for name in _names_of(registry) if own.get(name)] if isinstance(own, Mapping) else []
    helper = named[0] if named else config.get("credsStore")
    if not helper:
        return None
    if not isinstance(helper, str) or not _HELPER.fullmatch(helper):
        raise ValueError(f"{helper!r} is not a valid name of a credential helper")
    return helper


def file_login(config: Mapping[str, Any], registry: str) -> dict[str, str] | None:
    """User and password, or a token, of the file; None if missing or invalid."""
    try:
        stored = config.get("auths") or {}
        entry: Mapping[str, Any] = next((stored[name] for name in _names_of(registry) if stored.get(name)), {})
        if token := entry.get("identitytoken"):
            return {"identitytoken": str(token)}
        user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return None
    return {"username": user, "password": password}


def helper_login(answer: Any) -> dict[str, str]:
    """User and password, or a token, in a helper's answer. Raises ValueError."""
    match answer:
        case {"Username": str(user), "Secret": str(secret)}:
            return {"identitytoken": secret} if user == _TOKEN else {"username": user, "password": secret}
        case _:
            raise ValueError("it answers without Username and Secret")


def has_none(text: str) -> bool:
    """Whether a helper has no login for the registry."""
    return text.strip().lower().startswith(_NONE)
