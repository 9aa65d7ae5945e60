"""Labels of workers. Only the agent sets labels that start with `gpuward/`, from its readings.

Labels with trusted keys come from join tokens and administrators; all others come from the host.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from schemas.wire.inventory import ReportedGpu, ReportedHost

AGENT_PREFIX: Final = "gpuward/"
TRUSTED_LABELS: Final = ("gpuward.io/*",)  # the setting's default
_MAX_CHARS: Final = 253
_BLANKS: Final = re.compile(r"[\s\-]+")


def agent_labels(host: ReportedHost, gpus: Iterable[ReportedGpu] | None) -> dict[str, str]:
    """The agent's own labels: model and number of GPUs, driver, host name.

    Unknown and empty values have no label; `gpu-model` is also absent if models differ.
    """
    texts = {"hostname": host.hostname, "driver": host.driver or ""}
    if gpus is not None:
        models = [gpu.model for gpu in gpus]
        texts["gpu-count"] = str(len(models))
        texts["gpu-model"] = models[0] if len(set(models)) == 1 else ""
    values = {name: _label_value(value) for name, value in texts.items()}
    return {AGENT_PREFIX + name: value for name, value in values.items() if value}


def with_agent_labels(host: ReportedHost, gpus: Iterable[ReportedGpu] | None) -> dict[str, str]:
    """The host's labels, with those of the agent's prefix replaced by `agent_labels`."""
    own = {name: value for name, value in host.labels.items() if not name.startswith(AGENT_PREFIX)}
    return own | agent_labels(host, gpus)


def is_trusted(key: str, patterns: Sequence[str]) -> bool:
    """Whether labels with this key come from join tokens and administrators only."""
    return not key.startswith(AGENT_PREFIX) and any(fnmatchcase(key, pattern) for pattern in patterns)


def with_stated_labels(labels: Mapping[str, str], stated: Mapping[str, str], trusted: Sequence[str]) -> dict[str, str]:
    """A worker's labels: with trusted keys from `stated`, all others from the host."""
    own = {key: value for key, value in labels.items() if not is_trusted(key, trusted)}
    return own | {key: value for key, value in stated.items() if is_trusted(key, trusted)}


def configured_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of a user's configuration. Raises ValueError if one has the agent's prefix."""
    taken = sorted(name for name in labels if name.startswith(AGENT_PREFIX))
    if taken:
        raise ValueError(f"{', '.join(taken)}: labels that begin with {AGENT_PREFIX} are set by the agent; remove it")
    return dict(labels)


def _label_value(text: str) -> str:
    """The printable characters, bounded, with `-` for blanks."""
    printable = "".join(char for char in text if char.isprintable() or char.isspace())
    return _BLANKS.sub("-", printable)[:_MAX_CHARS].strip("-")
