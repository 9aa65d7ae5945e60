"""Grants: what an administrator may allow operators to write in a deployment."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Grant(StrEnum):
    """A kind of power over the host that a deployment can hold. Operators need it granted; administrators have all."""

    COMMAND = "command"  # a program of the user's own
    CODE = "code"  # flags that load or run code that does not come with the engine
    HOST_FILES = "host_files"  # flags that read or write files of the host
    ENVIRONMENT = "environment"  # variables that load code into a process or send it elsewhere


EVERY_GRANT: Final = frozenset(Grant)


@dataclass(frozen=True, slots=True)
class Power:
    """A field of a spec that needs a grant."""

    path: str
    grant: Grant
    why: str  # what the field does
    unlisted: bool = False  # no list has the field, so its effect is unknown
