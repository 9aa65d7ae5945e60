"""What requests state of workers: labels and networks."""

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from schemas.worker_labels import AGENT_PREFIX

MOST_LABELS: Final = 64
MOST_NETWORKS: Final = 64
_KEY: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")
_MOST_CHARS: Final = 253


def _labels(labels: Mapping[str, str | None]) -> Mapping[str, str | None]:
    for key, value in labels.items():
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key[:80]!r} is not a valid key: letters, digits, '.', '_', '/' and '-', at most 253")
        if key.startswith(AGENT_PREFIX):
            raise ValueError(f"{key}: labels that begin with {AGENT_PREFIX} are set by the agent; remove it")
        if value is not None and not (value.isprintable() and len(value) <= _MOST_CHARS):
            raise ValueError(f"{key}: must have at most {_MOST_CHARS} printable characters")
    return labels


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError(f"{text[:80]!r} is not a network such as 10.1.2.0/24: {error}") from error


StatedLabels = Annotated[dict[str, str], Field(max_length=MOST_LABELS), AfterValidator(_labels)]
StatedLabelChanges = Annotated[dict[str, str | None], Field(max_length=MOST_LABELS), AfterValidator(_labels)]
Networks = Annotated[list[Annotated[str, AfterValidator(_network)]], Field(max_length=MOST_NETWORKS)]
