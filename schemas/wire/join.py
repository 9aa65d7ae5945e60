"""The join: a token for a per-worker credential, over HTTP."""

from typing import Annotated, Final

from pydantic import Field

from schemas.wire.base import Wire

JOIN_PATH: Final = "/api/v1/join"


class JoinRequest(Wire):
    """The body of `POST /api/v1/join`."""

    token: Annotated[str, Field(max_length=512)]
    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
    agent_version: str = ""


class JoinResponse(Wire):
    """The credential is shown only once; the controller keeps its hash."""

    worker: str
    worker_uid: str
    credential: str
