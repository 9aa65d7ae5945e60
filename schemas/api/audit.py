"""The ledger's leader and audit, and the audit log, as the API returns them."""

from typing import Any

from schemas.api.view import Moment, View


class LeaderView(View, frozen=True, kw_only=True):
    """The lease row. `leading`: the controller that answers is the leader."""

    holder: str
    term: int
    renewed_at: Moment | None
    leading: bool


class AuditViolation(View, frozen=True, kw_only=True):
    """A row that breaks an invariant."""

    invariant: str
    message: str
    evidence: dict[str, Any] = {}


class AuditView(View, frozen=True, kw_only=True):
    """The names of the invariants that were checked, and the violations."""

    ok: bool
    checked: list[str]
    violations: list[AuditViolation] = []


class LedgerRepair(View, frozen=True, kw_only=True):
    """One change that mends the ledger: of which object, with its values before and after."""

    invariant: str
    object: str
    before: dict[str, Any]
    after: dict[str, Any]


class UnmendedViolation(AuditViolation, frozen=True, kw_only=True):
    """A violation that is left, since to mend it would be a guess. `way_out`: what an operator does about it."""

    way_out: str


class RepairView(View, frozen=True, kw_only=True):
    """What a repair found, what it changed (with `dry_run`: what it would change), and what is left.

    `mended` holds the first 1000 changes; `changes` is the number of all.
    """

    ok: bool
    dry_run: bool = False
    found: list[AuditViolation] = []
    changes: int = 0
    mended: list[LedgerRepair] = []
    left: list[UnmendedViolation] = []


class AuditLogEntry(View, frozen=True, kw_only=True):
    """One change, or one read of a secret or a log.

    Attributes:
        actor: `key:NAME` or `agent:NAME`; `host`: a command on the controller's host; empty: unknown.
        key_id: of the API key; empty: none.
        address: of the client.
        action: method and route; or `secret.read`, `backup`, `restore`, `key.reset`, `key.first`, `audit-log.seal`.
        object: the path below `/api/v1/`; or `secrets/NAME/INSTANCE`, `instances/NAME/logs`, `backups/TIME`.
        outcome: `done`; `refused`: 4xx; `failed`: 5xx; `cut`: the client left before the answer.
        status: of HTTP; 0: no request.
        code: of the error; empty: none.
        request_id: stands in the events of the same request, too.
        left_out: attempts before it that came to nothing, or reads of logs, which have no entry of their own.
    """

    id: int
    at: Moment
    actor: str
    key_id: str = ""
    address: str = ""
    action: str
    object: str = ""
    outcome: str
    status: int = 0
    code: str = ""
    request_id: str = ""
    left_out: int = 0


class AuditLogFinding(View, frozen=True, kw_only=True):
    """Entries or seals of the audit log that are not as they were sealed.

    Attributes:
        kind: `entries_removed`, `entries_added`, `entries_changed`, `seal_removed`, `seal_changed`, `seal_added`,
            `head_removed` or `head_changed`.
        message: for people.
        first_id: of the entries in question.
        last_id: of the entries in question.
        ids: of each entry, where they are known.
    """

    kind: str
    message: str
    first_id: int = 0
    last_id: int = 0
    ids: list[int] = []


class AuditLogVerification(View, frozen=True, kw_only=True):
    """A page of a verification of the audit log.

    Attributes:
        protected: whether entries are sealed, and this controller has the key that tells whether they were changed.
        reason: why they are not; empty: they are.
        since: when the seals began; what was removed before does not show.
        anchor_id: entries up to this id are old: retention may have deleted them.
        sealed_id: entries up to this id are sealed.
        unsealed: number of entries above it, which the next seal will cover.
        checked: number of entries that this page has checked.
        findings: what is wrong.
        next: cursor of the next page; null: this is the last one.
    """

    protected: bool
    reason: str = ""
    since: Moment | None = None
    anchor_id: int = 0
    sealed_id: int = 0
    unsealed: int = 0
    checked: int = 0
    findings: list[AuditLogFinding] = []
    next: str | None = None
