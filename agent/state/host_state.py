"""The journalled state of an agent and its host."""

import msgspec

from schemas.wire import AttestedTerm, Wire


class Condemned(Wire, frozen=True, kw_only=True):
    """A GPU that an Xid has condemned."""

    reason: str  # its health reason
    asks_recovery: bool = False  # the driver has requested a recovery since then
    # used by then since its driver was loaded; a lower value shows a reset. None: unknown
    energy_j: float | None = None


class PendingJoin(Wire, frozen=True, kw_only=True):
    """A join without an answer yet, so that it can be repeated with the token."""

    token_digest: str  # of the token, without its authority's hash
    name: str  # requested for the worker
    credential: str  # chosen by the agent


class HostState(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """The agent's identity and history. It holds secrets: only the folder's owner can read the file."""

    worker: str | None = None
    worker_uid: str | None = None
    credential: str | None = None
    next_credential: str | None = None  # issued by the controller, and not used yet
    previous_credential: str | None = None  # which a controller with a restored database may know
    pending_join: PendingJoin | None = None
    token_digest: str | None = None  # of the token that was exchanged for the credential
    proxy_secret: str | None = None
    next_proxy_secret: str | None = None  # issued with the next credential; gateways may use it at any time
    previous_proxy_secret: str | None = None  # which a gateway may still use until `previous_proxy_until_s`
    previous_proxy_until_s: float = 0.0  # Unix time
    proxy_port: int | None = None
    highest_term: int = 0
    highest_session: int = 0  # of a welcome
    told: AttestedTerm | None = None  # the last proven term and session
    report_seq: int = 0
    contact_s: float | None = None  # when the controller's last message came, in seconds since boot `contact_boot_id`
    contact_boot_id: str | None = None
    condemned: dict[str, Condemned] = msgspec.field(default_factory=dict)  # by the UUID of a GPU
    condemned_boot_id: str | None = None  # the boot in which they were condemned
    dismissed: dict[str, int] = msgspec.field(default_factory=dict)  # an operator's dismissals of Xids, by UUID
    container_owner: str | None = None  # the id in labels of this agent's containers
