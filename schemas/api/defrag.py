"""Defragmentation: the planned relocations of instances, and their progress."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.base import Strict, View

MAX_DEMANDS = 100


class DefragBody(Strict):
    """Body of `POST /defrag`. Pending instances are always considered first, then those of `manifests`.

    An instance of a higher priority than those that shall fit is relocated only with `any_priority`.
    """

    apply: bool = False
    any_priority: bool = False
    manifests: Annotated[list[dict[str, Any]], Field(max_length=MAX_DEMANDS)] = []


class MoveView(View):
    """A planned relocation: the replacement starts there first, then the old instance stops."""

    instance: str
    deployment: str
    workers: list[str]  # where it runs now
    to_workers: list[str]
    to_gpus: list[str]
    memory_mib: int  # claimed on all its GPUs together


class DefragView(View):
    """The plan. `fits` are the instances that fit after the relocations, `left` those that do not."""

    moves: list[MoveView] = []
    fits: list[str] = []
    left: list[str] = []
    applied: bool = False


class RelocationView(View):
    """A relocation and its progress."""

    instance: str
    deployment: str
    to_workers: list[str]
    to_gpus: list[str]
    demand: str
    state: Literal["waiting", "moving", "moved", "abandoned"]
    copy_name: str | None = None
    message: str = ""
    created_at: datetime
    ended_at: datetime | None = None


class RelocationsView(View):
    """The latest relocations, newest first."""

    items: list[RelocationView]
