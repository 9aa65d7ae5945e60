"""What all kinds share: pages of lists, errors, and conditions.

An object is `{kind, name, uid, generation, created_at, deleted_at, spec, status}`; each kind has its own file.
"""

from typing import Any, Generic, TypeVar

from schemas.api.view import Literal, Moment, View

T = TypeVar("T")


class Page(View, Generic[T], frozen=True, kw_only=True):
    """A page of a list. `next` is the cursor of the following page; None: this is the last one."""

    items: list[T]
    next: str | None = None


class ErrorBody(View, frozen=True, kw_only=True):
    """An error: `code` for programs, `message` for people, `details` for both."""

    code: str
    message: str
    details: dict[str, Any] = {}


class ErrorView(View, frozen=True, kw_only=True):
    """The answer to every request that is refused."""

    error: ErrorBody


class Condition(View, frozen=True, kw_only=True):
    """An independent fact about an object, with its reason."""

    type: str
    status: Literal["true", "false", "unknown"]
    reason: str = ""
    message: str = ""
    since: Moment | None = None
