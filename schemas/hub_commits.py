"""Commits of models on the hub: by the reference that was asked for, such as `org/name@main`."""

import re
from typing import Final

DEFAULT_REVISION: Final = "main"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # SHA-1, or SHA-256


def is_commit(revision: str) -> bool:
    """Whether a revision names its commit itself, so that it never moves."""
    return bool(_COMMIT.fullmatch(revision))


def hub_reference(repo: str, revision: str | None) -> str:
    """The key of a model's commit: `org/name@revision`."""
    return f"{repo}@{revision or DEFAULT_REVISION}"
