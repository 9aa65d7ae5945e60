"""What the configuration of `docker login` says of a registry. Pure."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

_HUB: Final = "https://index.docker.io/v1/"
_HUB_NAMES: Final = (_HUB, "docker.io", "index.docker.io", "https://index.docker.io/v1", "https://index.docker.io")
_HELPER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TOKEN: Final = "<token>"  # noqa: S105 - as helpers name the user of a token
_NONE: Final = "credentials not found"  # the beginning of a helper's answer where it has none


def server_of(registry: str) -> str:
    """The name under which logins for a registry are kept."""
    return _HUB if registry in _HUB_NAMES else registry


def _names_of(registry: str) -> tuple[str, ...]:
    """All names under which a login or a helper for a registry may stand, the usual one first."""
    return _HUB_NAMES if registry in _HUB_NAMES else (registry, f"https://{registry}")


def config_trouble(config: Any) -> str:
    """Why the configuration as a whole makes no sense; empty: it does."""
    if not isinstance(config, dict):
        return "it is not a JSON object"
    odd = next((name for name in ("auths", "credHelpers") if not isinstance(config.get(name) or {}, dict)), None)
    return f"its `{odd}` is not a JSON object" if odd else ""


def helper_for(config: Mapping[str, Any], registry: str) -> str | None:
    """The helper that keeps the login: the registry's own, else the one for all; None: the file keeps it itself.

    Raises:
        ValueError: the name of the helper is not valid.
    """
    own = config.get("credHelpers")
    found = (
        next((own[name] for name in _names_of(registry) if own.get(name)), None) if isinstance(own, Mapping) else None
    )
    helper = found or config.get("credsStore")
    if not helper:
        return None
    if not isinstance(helper, str) or not _HELPER.fullmatch(helper):
        raise ValueError(f"{helper!r} is not a valid name of a credential helper")
    return helper


def file_login(config: Mapping[str, Any], registry: str) -> dict[str, str] | None:
    """User and password, or a token, as the file keeps them; None: there is none, or it makes no sense."""
    try:
        stored = config.get("auths") or {}
        found: Mapping[str, Any] = next((stored[name] for name in _names_of(registry) if stored.get(name)), {})
        if token := found.get("identitytoken"):
            return {"identitytoken": str(token)}
        user, _, password = base64.b64decode(found["auth"]).decode().partition(":")
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error):
        return None
    return {"username": user, "password": password}


def helper_login(answer: Any) -> dict[str, str]:
    """User and password, or a token, as a helper has answered. Raises ValueError if the answer makes no sense."""
    match answer:
        case {"Username": str(user), "Secret": str(secret)}:
            return {"identitytoken": secret} if user == _TOKEN else {"username": user, "password": secret}
        case _:
            raise ValueError("it answers without Username and Secret")


def has_none(text: str) -> bool:
    """Whether a helper has no login for the registry."""
    return text.strip().lower().startswith(_NONE)
