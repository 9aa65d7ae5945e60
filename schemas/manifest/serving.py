"""How requests to a model are served. The gateway reads it; engines do not."""

from typing import Annotated, Final

from pydantic import Field

from schemas.base import Strict
from schemas.quantities import Seconds

LONGEST_S: Final = 86_400.0
_Wait = Annotated[Seconds, Field(gt=0, le=LONGEST_S)]


class ServingLimits(Strict):
    """How long a request waits for its engine. It changes in place, for requests that come later."""

    first_token_timeout: _Wait = Field(
        1800.0, description="Longest wait for the first byte of an answer; then the request ends with 504. At most 24h."
    )
    silence_timeout: _Wait = Field(
        300.0, description="Longest silence between two pieces of an answer; then the answer is cut. At most 24h."
    )
