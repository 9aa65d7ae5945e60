"""Receipts: the ledger's records of starts, sealed by the controller and kept by the agent with the process.

After a restore or a failover the ledger may have lost commits, and learns from receipts what runs. Agents cannot forge
them.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from controller.domain.placement import Layout, PlannedClaim


@dataclass(frozen=True, slots=True)
class StartReceipt:
    """One process of a start, with the claims that it has on its worker."""

    worker_id: str
    instance: str
    epoch: int
    rank: int
    deployment_uid: str
    revision: int  # generation of the spec that it runs
    created_at: datetime  # of the instance, from which its age in the queue counts
    engine: str  # chosen by placement; empty: its spec leaves no choice
    layout: Layout | None  # chosen by placement, without memory, which is in the claims
    claims: tuple[PlannedClaim, ...]

    @property
    def key(self) -> tuple[str, int, int]:
        return self.instance, self.epoch, self.rank

    @property
    def ranks(self) -> int:
        """The number of processes of the start."""
        return 1 if self.layout is None else self.layout.workers


def seal(record: dict[str, Any], key: bytes) -> str:
    """The text that an agent keeps. `record`: with the keys that `receipt_of` reads."""
    body = orjson.dumps(record)
    return f"{_text(body)}.{_text(_digest(body, key))}"


def open_sealed(text: str, key: bytes) -> dict[str, Any] | None:
    """The record that a controller of this ledger sealed; None if the seal is not valid."""
    body, _, digest = text.partition(".")
    try:
        content, given = urlsafe_b64decode(body), urlsafe_b64decode(digest)
    except ValueError:
        return None
    if not hmac.compare_digest(given, _digest(content, key)):
        return None
    record: dict[str, Any] = orjson.loads(content)
    return record


def process_named_by(text: str, worker_id: str) -> tuple[str, int, int] | None:
    """The process of this worker that an unverified receipt names; None: another worker's, or malformed."""
    try:
        record = orjson.loads(urlsafe_b64decode(text.partition(".")[0]))
        process = str(record["instance"]), int(record["epoch"]), int(record["rank"])
        return process if record["worker_id"] == worker_id else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def receipt_of(record: dict[str, Any]) -> StartReceipt:
    rank, layout = record["rank"], record["layout"]
    return StartReceipt(
        worker_id=record["worker_id"],
        instance=record["instance"],
        epoch=record["epoch"],
        rank=rank,
        deployment_uid=record["deployment_uid"],
        revision=record["revision"],
        created_at=datetime.fromisoformat(record["created_at"]),
        engine=record["engine"],
        layout=None if layout is None else Layout(memory_mib=0, exclusive=False, **layout),
        claims=tuple(PlannedClaim(**claim, rank=rank) for claim in record["claims"]),
    )


def _digest(body: bytes, key: bytes) -> bytes:
    return hmac.digest(key, body, hashlib.sha256)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode()
