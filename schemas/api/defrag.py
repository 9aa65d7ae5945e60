"""Defragmentation: the planned relocations of instances, and their progress."""

from schemas.api.view import Literal, Moment, View


class MoveView(View, frozen=True, kw_only=True):
    """A planned relocation: the replacement starts there first, then the old instance stops."""

    instance: str
    deployment: str
    workers: list[str]  # where it runs now
    to_workers: list[str]
    to_gpus: list[str]
    memory_mib: int  # claimed on all its GPUs together


class DefragView(View, frozen=True, kw_only=True):
    """The plan. `fits` are the instances that fit after the relocations, `left` those that do not."""

    moves: list[MoveView] = []
    fits: list[str] = []
    left: list[str] = []
    applied: bool = False


class RelocationView(View, frozen=True, kw_only=True):
    """A relocation and its progress."""

    instance: str
    deployment: str
    to_workers: list[str]
    to_gpus: list[str]
    demand: str
    state: Literal["waiting", "moving", "moved", "abandoned"]
    copy_name: str | None = None
    message: str = ""
    created_at: Moment
    ended_at: Moment | None = None


class RelocationsView(View, frozen=True, kw_only=True):
    """The latest relocations, newest first."""

    items: list[RelocationView]
