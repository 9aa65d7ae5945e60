"""The actor and the object of a request for the audit log, which a handler sets where the request shows neither."""

from dataclasses import dataclass
from typing import Final

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Audited:
    """The audit entry's object, actor and code."""

    object: str  # such as `workers/gpu-1`
    actor: str = ""  # such as `agent:gpu-1`; empty: unknown
    code: str = ""  # of a refusal; empty: not refused


AUDITED: Final = web.RequestKey("AUDITED", Audited)
