"""What an agent remembers of itself and of its host, as its journal keeps it."""

import msgspec

from schemas.wire import AttestedTerm, Wire


class Condemned(Wire, frozen=True, kw_only=True):
    """A GPU that an Xid has condemned."""

    reason: str  # its health reason
    asks_recovery: bool = False  # whether the driver has asked for a recovery since then
    # what it had used by then since its driver was loaded; less means that it was reset. None: unknown
    energy_j: float | None = None


class PendingJoin(Wire, frozen=True, kw_only=True):
    """A join whose answer has not come yet: all that asking again needs, besides the token."""

    token_digest: str  # of the token, without its authority's hash
    name: str  # that the worker is to have
    credential: str  # that the agent has chosen


class HostState(Wire, frozen=True, kw_only=True, omit_defaults=True):
    """The agent's identity and what it has seen. It holds secrets: only the folder's owner can read the file."""

    worker: str | None = None
    worker_uid: str | None = None
    credential: str | None = None
    next_credential: str | None = None  # handed over by the controller, and not used yet
    previous_credential: str | None = None  # what a controller whose database was restored may know instead
    pending_join: PendingJoin | None = None
    token_digest: str | None = None  # of the token that was exchanged for the credential
    proxy_secret: str | None = None
    next_proxy_secret: str | None = None  # handed over with the next credential; gateways may use it at any time
    previous_proxy_secret: str | None = None  # which a gateway may still use until `previous_proxy_until_s`
    previous_proxy_until_s: float = 0.0  # Unix time
    proxy_port: int | None = None
    highest_term: int = 0
    highest_session: int = 0  # that a welcome has named
    told: AttestedTerm | None = None  # the latest term and session that the controller has proven
    report_seq: int = 0
    contact_s: float | None = None  # when the controller's last message came, in seconds since boot `contact_boot_id`
    contact_boot_id: str | None = None
    condemned: dict[str, Condemned] = msgspec.field(
        default_factory=dict
    )  # by the UUID of a GPU; see `condemned_boot_id`
    condemned_boot_id: str | None = None  # the boot in which they were condemned
    dismissed: dict[str, int] = msgspec.field(default_factory=dict)  # by UUID: how often an operator has dismissed Xids
    container_owner: str | None = None  # the id that labels of this agent's containers name
