"""The hub of models: commits and references of its models, and variables by which a server keeps its own cache."""

import re
from typing import Final

OWN_CACHE: Final = frozenset({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
DEFAULT_REVISION: Final = "main"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")  # SHA-1, or SHA-256


def is_commit(revision: str) -> bool:
    """Whether a revision is a commit, which never moves."""
    return bool(_COMMIT.fullmatch(revision))


def hub_reference(repo: str, revision: str | None) -> str:
    """The key of a model's commit: `org/name@revision`."""
    return f"{repo}@{revision or DEFAULT_REVISION}"
