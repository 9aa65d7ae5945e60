"""Consolidation on the wire: what is to be moved so that others fit, and how far moves have come."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.base import View, Wire

MAX_DEMANDS = 100


class DefragBody(Wire):
    """Body of `POST /defrag`. Who waits is always among the demands; `manifests` come after them."""

    apply: bool = False
    manifests: Annotated[list[dict[str, Any]], Field(max_length=MAX_DEMANDS)] = []


class MoveView(View):
    """One instance that is to move: a copy comes up there, then the old one goes."""

    instance: str
    deployment: str
    workers: list[str]  # that it holds now
    to_workers: list[str]
    to_gpus: list[str]
    memory_mib: int  # of its GPUs together


class DefragView(View):
    """What was worked out. `left` would not fit with any moves that are allowed."""

    moves: list[MoveView] = []
    fits: list[str] = []
    left: list[str] = []
    applied: bool = False


class RelocationView(View):
    """A move, as far as it has come."""

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
    """The latest moves, newest first."""

    items: list[RelocationView]
