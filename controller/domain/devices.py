"""A worker's devices as stored, and the changes by its report."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from schemas.xids import FALLEN_OFF

# Reasons of a device's health.
MISSING = "missing"
UNREADABLE = "unreadable"
MEMORY_SHRUNK = "memory_shrunk"
UNSTEADY = "unsteady"  # starts the reason of a GPU that flaps; the rule is in `controller.decide.gpu_flapping`
# Codes at the start of a health reason: nothing can run on the GPU any more.
GONE: Final = (MISSING, "gpu_lost", f"xid_{FALLEN_OFF}")
_NEVER_READ: Final = "GPU-unreadable-"


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device as stored, without the counters of its claims. Sizes in MiB, CPU in thousandths of a core."""

    uuid: str
    kind: Literal["gpu", "host"]
    index: int
    model: str
    compute_capability: str | None
    memory_mib: int
    reported_mib: int
    cpu_milli: int
    health: Literal["ok", "unhealthy", "unknown"]
    health_reason: str
    mig_mode: bool
    present: bool
    vendor: str = "nvidia"
    reserved_mib: int = 0  # that the host's operator keeps back from placement
    parent: str | None = None  # the GPU of which it is a MIG slice
    losses: int = 0  # in a row, each within a day of the previous loss
    lost: bool = False  # and not back since
    unsteady_until: datetime | None = None  # not used before this time, once it is back; None: no such limit
    dismissals: int = 0  # by operators, at the last judgement: one more forgives all losses


@dataclass(frozen=True, slots=True)
class KnownDevice:
    """A stored device with its owner, the counters of its claims, and the database's time of the read."""

    row: DeviceRow
    worker_id: str
    owner_holds_it: bool  # the owner is ready, so its report of the device counts
    claims: int
    exclusive_claims: int
    claimed_cpu_milli: int
    dismissed: int  # number of times that an operator declared it healthy
    read_at: datetime


@dataclass(frozen=True, slots=True)
class DeviceChanges:
    """The rows to write, without unchanged ones, and what to report."""

    rows: tuple[DeviceRow, ...]
    refused: tuple[KnownDevice, ...]  # reported, but held by another worker
    missing: tuple[str, ...]  # UUIDs newly gone
    gpus_known: bool
    recovered: tuple[tuple[str, str], ...] = ()  # UUIDs of recovered GPUs, each with its old reason


def host_uuid(worker_id: str) -> str:
    """The UUID of the device that represents the host."""
    return f"host-{worker_id}"


def reason_code(reason: str) -> str:
    """The code of a health reason: the part before its colon."""
    return reason.partition(":")[0]


def never_read(uuid: str) -> bool:
    """Whether an agent made this name up for a GPU whose UUID it could never read."""
    return uuid.startswith(_NEVER_READ)
