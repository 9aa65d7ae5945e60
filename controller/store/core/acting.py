"""What is at work, for the events that it writes: an API key and its request, the leader, an agent.

It is kept in the context, so that every task that a request, a term or a connection starts has it too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple


class Actor(NamedTuple):
    """The actor's name (`key:NAME`, `policy:NAME`, `agent:NAME`, `leader`, `controller`, `host`), the request's id."""

    name: str = "controller"
    request_id: str = ""


_ACTOR: Final[ContextVar[Actor]] = ContextVar("actor", default=Actor())  # noqa: B039 - it is immutable


_ROLE: Final[ContextVar[str]] = ContextVar("role", default="")


@contextmanager
def acting(name: str, request_id: str = "", *, role: str = "") -> Iterator[None]:
    """Events written within are of this actor. `role` is that of its key."""
    token, role_token = _ACTOR.set(Actor(name, request_id)), _ROLE.set(role)
    try:
        yield
    finally:
        _ROLE.reset(role_token)
        _ACTOR.reset(token)


def current_role() -> str:
    """The role of the key that is at work; empty: Gpuward itself is."""
    return _ROLE.get()


def current_actor() -> Actor:
    """The present actor; the controller itself where none was named."""
    return _ACTOR.get()
