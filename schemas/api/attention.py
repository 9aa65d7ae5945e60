"""What needs an operator, as the API returns it: one entry for each cause, the worst first."""

from typing import Literal

from schemas.api.view import Moment, View

Severity = Literal["critical", "error", "warning", "notice"]
Cause = Literal[
    "no_leader", "database", "invariant", "workers_silent", "worker", "worker_condition", "reconcile", "model",
    "failed", "crash_loop", "starting", "rollout", "gpu", "pending", "idle", "secrets", "keys",
    "certificate",
]  # fmt: skip


class AttentionObject(View, frozen=True, kw_only=True):
    """An object that an entry is about. A GPU's name is its UUID; an instance's is its id. No name: the cluster."""

    kind: Literal["cluster", "worker", "gpu", "deployment", "instance"]
    name: str = ""


class AttentionEntry(View, frozen=True, kw_only=True):
    """One cause.

    Attributes:
        id: the same as long as the cause lasts: of cause, object and code.
        cause: what kind of cause it is.
        code: the reason code; the reference of reason codes explains it.
        since: when it began; None: unknown.
        title: the object and its state, in a few words.
        message: the details.
        count: how many objects it affects: instances; GPUs of `gpu`, workers of `workers_silent` and
            `worker_condition`, broken rows of `invariant`, secrets, keys.
        subjects: the first of them.
        object: where it is mended.
        advice: what to do; empty: the message says it.
    """

    id: str
    severity: Severity
    cause: Cause
    code: str
    since: Moment | None = None
    title: str
    message: str = ""
    count: int
    subjects: list[AttentionObject] = []
    object: AttentionObject
    advice: str = ""


class AttentionList(View, frozen=True, kw_only=True):
    """All entries, the worst first. `more`: number of entries that are left off."""

    at: Moment
    items: list[AttentionEntry]
    more: int = 0
    next: str | None = None
