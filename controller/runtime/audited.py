"""What a handler knows of its request that the audit log cannot see: on whose behalf it is, and what it concerns."""

from dataclasses import dataclass
from typing import Final

from aiohttp import web


@dataclass(frozen=True, slots=True)
class Audited:
    """Takes the place of what the request itself shows.

    Attributes:
        object: such as `workers/gpu-1`.
        actor: such as `agent:gpu-1`; empty: unknown.
        code: of a refusal; empty: none.
    """

    object: str
    actor: str = ""
    code: str = ""


AUDITED: Final = web.RequestKey("AUDITED", Audited)
