"""The present input of deployments' analyses: one narrow read, fast enough to run at each change."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from controller.store.core.database import Reader

_INPUTS: Final = """
    select d.uid, d.revision, d.deleted_at, r.input_hash, r.created_at
      from deployments d join revisions r on r.deployment_uid = d.uid and r.generation = d.revision
     where d.uid = any($1::uuid[])"""


@dataclass(frozen=True, slots=True)
class CurrentInput:
    """The newest revision's input.

    Attributes:
        revision: its generation.
        input_hash: identifies what its analysis reads.
        revised_at: when the revision was created.
        deleted_at: when the deployment was deleted; None while it lives.
    """

    revision: int
    input_hash: str
    revised_at: datetime
    deleted_at: datetime | None


async def current_inputs(connection: Reader, uids: Sequence[str]) -> dict[str, CurrentInput]:
    """The newest input of each deployment; deleted and finished ones are missing."""
    return {
        str(row["uid"]): CurrentInput(row["revision"], row["input_hash"], row["created_at"], row["deleted_at"])
        for row in await connection.fetch(_INPUTS, uids)
    }
