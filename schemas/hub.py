"""Variables by which a deployment tells its server to keep models of the hub in a place of its own."""

from typing import Final

OWN_CACHE: Final = frozenset({"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
